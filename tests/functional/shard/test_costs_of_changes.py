"""What a change of many messages costs a caller for some topics, on a real shard."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from duemq.cluster.shards.shard_reader import Query
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, MOVE, REDRIVE, Draft, Terms
from duemq.model.messages.names import of_caller
from duemq.proxy.gateway.base import Receipt
from tests.functional.shard.test_names_of_callers import LATER, Site, run, send

MIB = 1 << 20


def test_a_change_looks_topics_up_without_payloads_and_each_ref_once(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        ann = site.caller("ann", "a.*")
        sent = await site.all.send([Draft("a.x", bytes(MIB), LATER, key=b"k") for _ in range(40)])
        ids = [one.id for one in sent if isinstance(one, Receipt)]
        other = (await send(site.all, of_caller("bob", "n"), "b.x")).id
        named = await send(ann, of_caller("ann", "mine"), "a.x")
        refs = [*ids, *ids[:1] * 300, other, "mine", "nothing", *["mine"] * 300]
        tracemalloc.start()
        try:
            known = await site.gateway.topics_of(refs, "ann")
            assert len((await site.all.find(Query(key="k", limit=100))).messages) == 40
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 32 * MIB, peak  # 40 payloads, or 5,000 of one, would be more
        assert len(known) == 42 and known["mine"] == (named.id, "a.x") and known[other].topic == "b.x"
        outcomes = await ann.change(MOVE, refs, LATER - 1)
        moved = [outcome.answer is Answer.OK for outcome in outcomes]
        assert moved == [True] * 340 + [False, True, False] + [True] * 300
        times = [LATER - 3, LATER - 2, LATER - 3]
        assert all(one.answer is Answer.OK for one in await ann.change(MOVE, ids[:1] * 3, times))
        state = await ann.state(ids[0])
        assert state is not None and state.due == LATER - 3  # the last one holds
        assert outcomes[341].id == named.id and outcomes[340].answer is Answer.UNKNOWN

    run(tmp_path, scenario)


def test_many_large_messages_are_changed_a_few_at_a_time(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        small = [Draft("a.x", b"", LATER) for _ in range(60)]  # the rows that are read first say nothing of the others
        sent = await site.all.send(small)
        for _ in range(6):
            sent += await site.all.send([Draft("a.x", bytes(MIB), LATER) for _ in range(10)])
        ids = [one.id for one in sent if isinstance(one, Receipt)]
        tracemalloc.start()
        try:
            for kind, due in ((MOVE, LATER - 1), (MOVE, LATER - 2), (CANCEL, 0)):
                outcomes = await site.all.change(kind, ids, due)
                while any(outcome.answer is None for outcome in outcomes):
                    outcomes = await site.all.change(kind, ids, due)
                assert {outcome.answer for outcome in outcomes} <= {Answer.OK, Answer.CANCELLED_BEFORE}
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 40 * MIB, peak  # 60 payloads, twice, would be 120

    run(tmp_path, scenario)


@pytest.mark.parametrize("topics", [(), ("a.*",)])
def test_each_ref_counts_for_the_rate(tmp_path: Path, topics: tuple[str, ...]) -> None:
    async def scenario(site: Site) -> None:
        charged: list[int] = []
        ann = site.caller("ann", *topics, charge=charged.append)
        await ann.change(CANCEL, ["one"] * 7)
        await ann.change(REDRIVE, ["one"], terms=Terms("", 3, ""))
        assert charged == [7, 1]

    run(tmp_path, scenario)
