"""What a gateway without a store does with drafts and changes, on a log in memory and with a scripted ledger."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.base import AppendResults, Batches, PartlyAppended, TopicState
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.partitioner import partition_of
from duemq.cluster.backend import NoCluster
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.shards.shard_reader import MessageState, NamedMessage, Query, SearchPart, Status
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.cluster.topics.topic_states import TopicStates
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.model.errors import DiskFull, LogFailed, Rejected, Unavailable
from duemq.model.log.ledger import START, Answer, Entry
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, MOVE, Draft, read_change
from duemq.model.messages.names import of_client, shard_of_name
from duemq.model.messages.row import direct_frame
from duemq.proxy.gateway.base import ChangeOutcome, Receipt
from duemq.proxy.gateway.cluster_backend import ProxyBackend
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.gateway.shard_router import ByKey
from duemq.storage.shard.records import ImportRecord
from duemq.storage.shard.topic_counts import TopicCount

NOW, SHARDS, LIMIT = 1_795_255_200_000, 4, 500
"""ms; shards; the largest record (bytes) that topic `small` takes."""


class SmallTopicBus(MemoryBus):
    """Its topic `small` takes records of up to LIMIT bytes."""

    def topic_state(self, topic: str) -> TopicState | None:
        found = super().topic_state(topic)
        return found if found is None or topic != "small" else dataclasses.replace(found, max_frame_bytes=LIMIT)


class Cluster:
    """A reader that knows nothing and notes how far a replica has to be, and a view of one node."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.counts: dict[int, TopicCount] = {}
        self.named_found: dict[bytes, NamedMessage] = {}
        self.unreadable: Unavailable | None = None
        self.health = NodeHealth(NodeState.READY)
        self.leading: Mapping[int, str] = {0: "a"}

    async def state(self, *asked: Any) -> MessageState | None:
        self.asked.append(asked)
        return None

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        self.asked.append((shard, tuple(names), offset))
        if self.unreadable is not None:
            raise self.unreadable
        return [self.named_found.get(name) for name in names]

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        self.asked.append((shard, first_keys, offset))
        return [77 + place for place in range(len(first_keys))]

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        self.asked.append((shard, tuple(first_keys), offset))
        return ["orders"] * len(first_keys)

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        return self.counts.get(shard)

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        return None

    async def import_record(self, shard: int, wanted: int, offset: int) -> ImportRecord | None:
        return None

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        return None

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        return 0, []

    async def imported_ids(self, shard: int, wanted: int, first: int, most: int) -> bytes | None:
        return None

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        return {shard: SearchPart([], None) for shard in after}

    def members(self) -> Sequence[Member]:
        return [Member("a", "http://a", health=self.health)]

    def masters(self) -> Mapping[int, str]:
        return self.leading


class Site:
    def __init__(self, refuse: Callable[[Batches], None] | None = None) -> None:
        self.log, self.cluster = MemoryLog(lambda: NOW), Cluster()
        self.bus = SmallTopicBus(self.log, refuse=refuse)
        self.follower = LedgerFollower(self.bus, SHARDS)
        self.follower.entries.update(dict.fromkeys(range(SHARDS), START))
        self.ids = IdCodec(b"s" * 32)
        self.selection = Noting(SHARDS)
        self.watch = ClockWatch(lambda: NOW)
        self.backend = ProxyBackend(
            "c", self.bus, self.ids, TopicStates(self.bus, 0), self.follower, self.cluster, self.cluster, NoCluster(),
            self.watch, CollectorRegistry(),
        )  # fmt: skip
        self.gateway = CommandGateway(self.backend, self.selection, answer_s=0.05)
        self._numbers = [count() for _ in range(SHARDS)]

    async def receipts(self, *drafts: Draft) -> list[Receipt]:
        return [answer for answer in await self.gateway.send(drafts) if isinstance(answer, Receipt)]

    def answer(self, shard: int, offset: int, answer: Answer) -> None:
        self.publish(shard, offset + 1, {offset: answer})

    def publish(self, shard: int, applied: int, answers: Mapping[int, Answer]) -> None:
        """The next entry of a shard's ledger, as if it had been read."""
        entry = Entry(next(self._numbers[shard]), applied, make_key(1, 0, 0), NOW, answers)
        self.follower.progress[shard].publish(entry)


NOBODY = next(name for name in map(str, range(100)) if shard_of_name(of_client(name), SHARDS) == 0)
"""A name that no message has. The first shard decides about it."""


class Noting(ByKey):
    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.good: list[int] = []
        self.bad: list[int] = []

    def measured(self, shard: int, seconds: float) -> None:
        self.good.append(shard)

    def failed(self, shard: int) -> None:
        self.bad.append(shard)


def at_site(scenario: Callable[[Site], Awaitable[None]], refuse: Callable[[Batches], None] | None = None) -> None:
    async def run() -> None:
        site = Site(refuse)
        for topic, partitions in ((BUFFER, SHARDS), (LEDGER, SHARDS), ("orders", 3), ("small", 1)):
            await site.bus.create_topic(topic, partitions)
        await site.watch.measure(site.bus)
        await scenario(site)

    asyncio.run(run())


def later(topic: str = "orders", payload: bytes = b"p", key: bytes | None = None) -> Draft:
    return Draft(topic, payload, NOW + 1000, key)


def test_the_keyless_of_one_call_go_to_one_shard_and_the_keyed_by_their_key() -> None:
    async def scenario(site: Site) -> None:
        shards = []
        for _ in range(2):
            keyless = [later() for _ in range(5)]
            found = [site.ids.read(receipt.id) for receipt in await site.receipts(*keyless)]
            assert [one.offset for one in found if one] == [0, 1, 2, 3, 4]
            shards.append({one.shard for one in found if one})
        assert shards == [{0}, {1}]
        keyed = [later(key=b"%d" % (number % 7)) for number in range(70)]
        found = [site.ids.read(receipt.id) for receipt in await site.receipts(*keyed)]
        assert len({(draft.key, one.shard) for draft, one in zip(keyed, found, strict=True) if one}) == 7
        assert set(site.selection.good) == {0, 1} | {one.shard for one in found if one}

    at_site(scenario)


def test_new_messages_are_refused_where_a_masters_disk_is_full() -> None:
    async def scenario(site: Site) -> None:
        full = "the disk of /data is 91.0 % full"
        site.cluster.health = NodeHealth(NodeState.READY, watermark=2)
        assert await site.receipts(later())
        site.cluster.health = NodeHealth(NodeState.READY, watermark=3, full=full)
        with pytest.raises(DiskFull, match="node a: the disk of /data is 91") as refused:
            await site.gateway.send([later()])
        assert refused.value.retry_after_s > 0
        site.cluster.leading = {}
        assert await site.receipts(later()), "a standby's disk is no reason"
        site.cluster.leading = {0: "a"}
        assert site.gateway.why_not_ready() is None, "deliveries go on"

    at_site(scenario)


def test_a_failed_append_is_told_to_the_selection_and_to_the_caller() -> None:
    def refuse(batches: Batches) -> None:
        raise LogFailed("the broker is away")

    async def scenario(site: Site) -> None:
        with pytest.raises(Unavailable):
            await site.gateway.send([later()])
        assert (site.selection.bad, site.selection.good) == ([0], [])

    at_site(scenario, refuse)


def test_what_a_target_would_not_take_is_refused_and_the_rest_accepted() -> None:
    async def scenario(site: Site) -> None:
        room = LIMIT - len(direct_frame(Draft("small", b""), bytes(32), NOW)) - 10
        answers = await site.gateway.send([
            later("missing"), later("small", b"x" * room), later("small", b"x" * LIMIT), later(BUFFER), later(),
        ])  # fmt: skip
        codes = [answer.code if isinstance(answer, Rejected) else "" for answer in answers]
        assert codes == ["unknown_topic", "", "payload_too_large", "bad_topic", ""]
        assert isinstance(answers[2], Rejected) and str(LIMIT) in answers[2].detail and answers[2].field == "payload"
        assert len(await site.gateway.send([later("missing")])) == 1

    at_site(scenario)


def test_an_answer_is_the_ledgers_or_that_it_is_not_known() -> None:
    async def scenario(site: Site) -> None:
        (receipt,) = await site.receipts(later())
        (pending,) = await site.gateway.change(CANCEL, [receipt.id])
        assert (pending.id, pending.answer) == (receipt.id, None)
        cancelling = asyncio.create_task(site.gateway.change(CANCEL, [receipt.id, NOBODY]))
        while await site.bus.end_offset(BUFFER, 0) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        answers = {2: Answer.DELIVERED, 3: Answer.UNKNOWN}
        site.publish(0, 4, answers)
        late, unknown = await cancelling
        assert (late.answer, late.at, unknown.answer) == (Answer.DELIVERED, 77, Answer.UNKNOWN)
        # A replica that is asked has to be as far as the answer, and as all that was seen here before.
        assert site.cluster.asked[-1][2] == 2
        await site.gateway.state(receipt.id)
        assert site.cluster.asked[-1][2] == 3

    at_site(scenario)


def test_each_is_moved_to_its_own_time_and_of_many_the_times_are_looked_up_where_asked_for() -> None:
    async def scenario(site: Site) -> None:
        (receipt,) = await site.receipts(later())
        site.gateway = CommandGateway(site.backend, site.selection, answer_s=5.0)

        async def moved(times: bool) -> list[ChangeOutcome]:
            first = await site.bus.end_offset(BUFFER, 0)
            targets = [NOBODY, *[receipt.id] * 17]
            moving = asyncio.create_task(site.gateway.change(MOVE, targets, range(100, 118), times=times))
            while await site.bus.end_offset(BUFFER, 0) < first + 18:  # noqa: ASYNC110
                await asyncio.sleep(0)
            records = await site.bus.read(BUFFER, 0, first, 1 << 20)
            assert [found.due for one in records if (found := read_change(one.frame))] == list(range(101, 118))
            answers = {first + 1 + at: Answer.DELIVERED if at % 2 else Answer.OK for at in range(17)}
            answers[first] = Answer.UNKNOWN
            site.publish(0, first + 18, answers)
            return await moving

        assert {outcome.at for outcome in await moved(False)} == {0}
        outcomes = await moved(True)
        assert [outcome.at for outcome in outcomes] == [0, *(0 if at % 2 == 0 else 77 + at // 2 for at in range(17))]
        (asked,) = [one for one in site.cluster.asked if isinstance(one[1], list)]  # not those for the name
        assert asked[2] == await site.bus.end_offset(BUFFER, 0) - 2  # of the last one that was delivered

    at_site(scenario)


@pytest.mark.parametrize("status", ["delivered", "scheduled", None])
def test_of_a_named_message_without_delay_the_receipt_says_what_became_of_it(status: Status | None) -> None:
    """Accepted is not delivered: its target may have refused it in the same cycle."""

    async def scenario(site: Site) -> None:
        site.gateway = CommandGateway(site.backend, site.selection, answer_s=30.0)
        if status is not None:
            site.cluster.named_found[of_client("order-1")] = NamedMessage(
                b"f" * 16, MessageState("id", status, "orders", NOW)
            )
        sending = asyncio.create_task(site.gateway.send([Draft("orders", b"p", None, name=of_client("order-1"))]))
        shard = shard_of_name(of_client("order-1"), SHARDS)
        while not await site.bus.end_offset(BUFFER, shard):  # noqa: ASYNC110
            await asyncio.sleep(0)
        site.answer(shard, 0, Answer.ACCEPTED)
        (receipt,) = await sending
        assert isinstance(receipt, Receipt) and receipt.status == (status or "scheduled")
        assert site.cluster.asked == [(shard, (of_client("order-1"),), 0)], "a replica that has read the command"

    at_site(scenario)


def test_a_direct_message_of_another_proxy_is_known() -> None:
    async def scenario(site: Site) -> None:
        (receipt,) = await site.receipts(Draft("orders", b"p"))
        other = CommandGateway(site.backend)
        state = await other.state(receipt.id)
        assert state is not None and (state.status, state.topic) == ("delivered", "orders")

    at_site(scenario)


def test_messages_are_accepted_while_no_node_is_ready_and_readiness_says_so() -> None:
    async def scenario(site: Site) -> None:
        site.cluster.health = NodeHealth(NodeState.OUT, "diverged")
        assert "no delay node is ready" in str(site.gateway.why_not_ready())
        assert len(await site.receipts(later())) == 1
        site.follower.entries.clear()
        with pytest.raises(Unavailable, match="ledger"):
            await site.gateway.send([later()])

    at_site(scenario)


def test_a_shard_that_cannot_be_appended_to_or_read_touches_its_own_messages_alone() -> None:
    """Those that may go to any shard go to another one."""
    names = {shard_of_name(name, SHARDS): name for name in (of_client(str(number)) for number in range(100))}
    keys = {partition_of(key, SHARDS): key for key in (b"%d" % number for number in range(100))}

    async def scenario(site: Site) -> None:
        append = site.bus.append

        async def part(batches: Batches, *, for_answer: bool = False) -> AppendResults:
            failures = {where: Unavailable("no broker leads it") for where in batches if where == (BUFFER, 0)}
            results = await append({where: frames for where, frames in batches.items() if where not in failures})
            if failures:
                raise PartlyAppended(results, failures)
            return results

        site.bus.append = part  # type: ignore[method-assign]
        answers = await site.gateway.send([later(key=keys[0]), later(key=keys[1])])
        assert isinstance(answers[0], Rejected) and answers[0].code == "unavailable"
        assert isinstance(answers[1], Receipt) and site.selection.bad == [0]
        site.bus.append = append  # type: ignore[method-assign]
        site.bus.troubles = lambda: {(LEDGER, 0): "no broker leads it"}  # type: ignore[method-assign]
        assert site.gateway.why_not_ready() is None
        readiness = site.backend.readiness()
        assert readiness.reason is None and readiness.shards[0].reason == "ledger_unreadable"
        named = [later()._replace(name=names[shard], fingerprint=b"f" * 16) for shard in (0, 1)]
        refused, _ = await site.gateway.send(named)
        assert isinstance(refused, Rejected) and "the ledger of shard 0 cannot be read" in refused.detail
        free = [await site.receipts(later()) for _ in range(2 * SHARDS)]
        shards = [found.shard for (receipt,) in free if (found := site.ids.read(receipt.id))]
        assert 0 not in shards and len(shards) == 2 * SHARDS

    at_site(scenario)


def test_an_import_that_no_reader_sees_yet_is_not_said_to_be_unknown() -> None:
    """Its transaction is over for the proxy that committed it, and the brokers are still writing its markers."""

    async def scenario(site: Site) -> None:
        await site.bus.append({(BUFFER, 0): [b"x", b"y"]})
        assert await site.gateway.import_record("0-2") is None
        end = await site.bus.end_offset(BUFFER, 0)

        async def seen(topic: str, partition: int) -> int:
            return end - 1

        site.bus.end_offset = seen  # type: ignore[method-assign]
        site.bus.sure_end = AsyncMock(return_value=end)  # type: ignore[method-assign]
        for read in (site.gateway.import_record("0-1"), site.gateway.imported_ids("0-1", 0, 1)):
            with pytest.raises(Unavailable):
                await read
        assert await site.gateway.import_record("0-2") is None
        assert await site.gateway.imported_ids("0-2", 0, 1) is None
        site.bus.sure_end.side_effect = LogFailed("the brokers do not agree")
        with pytest.raises(Unavailable):
            await site.gateway.import_record("0-2")

    at_site(scenario)


def test_pending_messages_of_a_topic_are_known_once_every_shard_has_counted() -> None:
    async def scenario() -> None:
        site = Site()
        site.cluster.counts = {shard: TopicCount(10, 1) for shard in range(SHARDS - 1)}
        assert await site.gateway.pending("t") is None, "one shard counts yet"
        site.cluster.counts[SHARDS - 1] = TopicCount(5, 0)
        assert await site.gateway.pending("t") == TopicCount(10 * (SHARDS - 1) + 5, SHARDS - 1)

    asyncio.run(scenario())
