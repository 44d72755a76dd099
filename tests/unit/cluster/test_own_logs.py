"""A cluster starts on its own logs only: not on those of another, nor on topics that were made again or mirrored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from duemq.bus.base import TopicRefused
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER, create_logs
from duemq.cluster.topics.own_logs import OwnLogs
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import prefix_of

pytestmark = pytest.mark.anyio

IDS = {BUFFER: "b1", LEDGER: "l1"}


class Kept:
    """Where the identity is kept."""

    def __init__(self, ids: Mapping[str, str] | None) -> None:
        self.ids = ids

    async def keep(self, ids: Mapping[str, str], before: Mapping[str, str] | None) -> Mapping[str, str]:
        if self.ids == before:
            self.ids = dict(ids)
        return self.ids or {}


async def logs(*, records: bool, **ids: str) -> MemoryBus:
    log = MemoryLog()
    bus = MemoryBus(log)
    await create_logs(bus, 2)
    log.ids |= IDS | ids
    if records:
        await bus.append({(LEDGER, 1): [b"entry"]})
        await bus.trim(LEDGER, 1, 1)  # records that retention has dropped were records
    return bus


def own(kept: Kept, *accepted: str) -> OwnLogs:
    return OwnLogs(ClusterIdentity("c1", 2, b"s" * 32, prefix_of("staging"), kept.ids), kept.keep, accepted)


async def test_a_new_cluster_takes_empty_logs_and_no_others() -> None:
    kept = Kept({})
    with pytest.raises(TopicRefused, match=r"'duemq\.staging\.ledger' has records, and cluster c1 has just been made"):
        await own(kept).check(await logs(records=True))
    assert kept.ids == {}
    await own(kept).check(await logs(records=False))
    assert kept.ids == IDS
    await own(kept).check(await logs(records=True))  # the next start


async def test_a_cluster_that_an_older_version_made_takes_what_is_there() -> None:
    kept = Kept(None)
    await own(kept).check(await logs(records=True))
    assert kept.ids == IDS


async def test_a_topic_that_was_made_again_is_refused_until_an_operator_accepts_it() -> None:
    kept = Kept(IDS)
    again = await logs(records=False, **{BUFFER: "b2"})
    for _ in range(2):
        with pytest.raises(
            TopicRefused, match=r"'duemq\.staging\.buffer' has the id b2, and that of cluster c1 has b1"
        ):
            await own(kept, "b3").check(again)
    await own(kept, "b2").check(again)
    assert kept.ids == {BUFFER: "b2", LEDGER: "l1"}
    await own(kept).check(again)
    with pytest.raises(TopicRefused, match="has the id b1"):
        await own(kept).check(await logs(records=True))


async def test_the_first_of_two_that_start_at_once_says_which_logs_they_are() -> None:
    kept = Kept({})
    first, second = own(kept), own(kept)
    await first.check(await logs(records=False))
    with pytest.raises(TopicRefused, match="has the id b9"):
        await second.check(await logs(records=False, **{BUFFER: "b9"}))
    assert kept.ids == IDS


async def test_a_process_that_read_the_identity_before_another_began_takes_its_records_for_own() -> None:
    kept = Kept({})
    first, second = own(kept), own(kept)
    await first.check(await logs(records=False))
    await second.check(await logs(records=True))
    assert kept.ids == IDS


async def test_an_id_that_a_broker_did_not_know_yet_is_stored_later() -> None:
    kept = Kept({})
    bus = await logs(records=False)
    logs_of_process = own(kept)
    del bus.log.ids[LEDGER]
    await logs_of_process.check(bus)
    bus.log.ids |= IDS
    await logs_of_process.check(bus)
    assert kept.ids == IDS


async def test_a_log_without_ids_is_not_compared() -> None:
    kept = Kept({})
    bus = MemoryBus(MemoryLog())
    await create_logs(bus, 2)
    await bus.append({(BUFFER, 0): [b"x"]})
    await own(kept).check(bus)
    assert kept.ids == {}
