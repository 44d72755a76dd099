"""What a gateway says once a request may be in the log: done, pending or not known, and never that nothing happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import pytest

from duemq.bus.base import Batches
from duemq.cluster.shards.shard_reader import MessageState, NamedMessage
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import DiskFull, LogFailed, OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, REDRIVE, Draft
from duemq.model.messages.names import CLIENT, Name, of_caller, of_client, shard_of_name
from duemq.model.messages.plain import ByName, RecordPosition, command_of
from duemq.proxy.gateway.base import ChangeOutcome, Receipt
from duemq.proxy.gateway.changes import NameLookups
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.message_resolver import direct_checksum
from tests.unit.gateway.test_gateway import NOW, SHARDS, Site, at_site, later
from tests.unit.gateway.test_gateway_imports import FILES

T = TypeVar("T")
FIRST = MessageState("first", "delivered", "orders", NOW)
PRINT = b"f" * 16


def named(*names: Name) -> list[Draft]:
    return [Draft("orders", b"p", NOW + 1000, name=name, fingerprint=PRINT) for name in names]


def names_of_shard(shard: int, count: int) -> list[Name]:
    return [name for name in (of_client(str(n)) for n in range(1000)) if shard_of_name(name, SHARDS) == shard][:count]


async def when_appended(site: Site, shard: int, count: int, work: Awaitable[T], answers: Sequence[Answer]) -> T:
    """What becomes of a request whose commands are in the log, once the ledger has answered the first of them."""
    task = asyncio.ensure_future(work)
    while await site.bus.end_offset(BUFFER, shard) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    site.publish(shard, len(answers), dict(enumerate(answers)))
    return await task


def test_of_many_names_each_is_answered_as_its_shard_says() -> None:
    async def scenario(site: Site) -> None:
        names = names_of_shard(1, 5)
        _, repeated, conflicting, forgotten, _ = names
        site.cluster.named_found = {name: NamedMessage(PRINT, FIRST) for name in (repeated, conflicting)}
        sending = site.gateway.send([*named(*names), later()])
        answers = [Answer.ACCEPTED, Answer.DUPLICATE, Answer.CONFLICT, Answer.DUPLICATE]
        accepted, known, conflict, gone, unknown, other = await when_appended(site, 1, 5, sending, answers)
        assert isinstance(accepted, Receipt) and not accepted.known and isinstance(other, Receipt)
        assert known == Receipt("first", "delivered", "orders", NOW, True)
        assert conflict == Receipt("first", "delivered", "orders", NOW, True, True)
        assert isinstance(gone, Rejected) and gone.code == "unavailable", "nothing of it was accepted"
        assert isinstance(unknown, Rejected) and unknown.code == "outcome_unknown"
        assert site.cluster.asked == [(1, (repeated, conflicting, forgotten), 3)], "they were read together"

    at_site(scenario)


def test_a_name_of_which_nobody_can_say_is_not_known() -> None:
    async def scenario(site: Site) -> None:
        names = names_of_shard(0, 2)
        site.cluster.unreadable = Unavailable("no replica answers")
        sending = site.gateway.send(named(*names))
        accepted, known = await when_appended(site, 0, 2, sending, [Answer.ACCEPTED, Answer.DUPLICATE])
        assert isinstance(accepted, Receipt) and isinstance(known, Rejected) and known.code == "outcome_unknown"
        with pytest.raises(OutcomeUnknown, match="no replica answers"):
            await site.gateway.named([(names[0], PRINT)])
        site.cluster.unreadable = None
        site.cluster.named_found[names[1]] = NamedMessage(b"g" * 16, FIRST)
        pairs = [(names[0], PRINT), (names[1], PRINT), (names[1], b"g" * 16)]
        missing, conflict, first = await site.gateway.named(pairs)
        assert missing is None and conflict is not None and conflict.conflict
        assert first == Receipt("first", "delivered", "orders", NOW, True)

    at_site(scenario)


def test_a_shard_that_stops_after_the_append_leaves_nothing_refused() -> None:
    async def scenario(site: Site) -> None:
        site.gateway = CommandGateway(site.backend, site.selection, answer_s=300.0)
        shard = 2
        (receipt,) = await site.receipts(*named_later(site, shard))
        sending = asyncio.create_task(site.gateway.send(named(*names_of_shard(shard, 1))))
        cancelling = asyncio.create_task(site.gateway.change(CANCEL, [receipt.id]))
        while await site.bus.end_offset(BUFFER, shard) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        site.follower.progress[shard].fail(Unavailable("it is stopped"))
        (answer,) = await sending
        assert isinstance(answer, Rejected) and answer.code == "outcome_unknown" and "it is stopped" in answer.detail
        assert await cancelling == [ChangeOutcome(receipt.id, None)], "it is on record"
        with pytest.raises(Unavailable) as refused:
            await site.gateway.change(CANCEL, [receipt.id])
        assert not isinstance(refused.value, OutcomeUnknown), "nothing was appended"

    def named_later(site: Site, shard: int) -> list[Draft]:
        while site.selection.pick() != (shard - 1) % SHARDS:
            pass
        return [later()]

    at_site(scenario)


@pytest.mark.parametrize("error", [LogFailed("no answer in time"), DiskFull("a write met ENOSPC")])
def test_what_the_log_did_not_answer_is_not_known(error: Unavailable) -> None:
    armed = False

    def refuse(batches: Batches) -> None:
        if armed:
            raise error

    async def scenario(site: Site) -> None:
        nonlocal armed
        (receipt,) = await site.receipts(later())
        armed = True
        for write in (
            site.gateway.send([later()]), site.gateway.change(CANCEL, [receipt.id]),
            site.gateway.import_file(FILES[0]), site.gateway.import_files(FILES),
        ):  # fmt: skip
            with pytest.raises(OutcomeUnknown) as unknown:
                await write
            assert unknown.value.code == "outcome_unknown"

    at_site(scenario, refuse)


def test_what_could_not_be_looked_up_before_was_not_begun() -> None:
    async def scenario(site: Site) -> None:
        async def failing(*asked: object) -> None:
            raise LogFailed("Kafka: no answer")

        site.cluster.holder = failing  # type: ignore[assignment]
        site.cluster.state = failing  # type: ignore[method-assign]
        site.bus.committer = failing  # type: ignore[assignment]
        (receipt,) = await site.receipts(later())
        for work in (site.gateway.state(receipt.id), site.gateway.import_files(FILES)):
            with pytest.raises(Unavailable) as refused:
                await work
            assert refused.value.code == "unavailable"

    at_site(scenario)


def test_names_of_a_whole_batch_are_looked_up_in_requests_that_a_node_reads() -> None:
    """A caller for some topics asks for two of each."""

    async def scenario(site: Site) -> None:
        texts = [f"{number:0128}" for number in range(10_000 * SHARDS)]
        names = [(of_caller("key", text), PRINT) for text in texts] + [(of_client(text), PRINT) for text in texts]
        site.cluster.named_found[names[-1][0]] = NamedMessage(PRINT, MessageState("id", "scheduled", "orders", NOW))
        receipts = await site.gateway.named(names)
        assert [receipt.id for receipt in receipts if receipt] == ["id"] and receipts[-1] is not None
        assert sum(len(asked) for _, asked, _ in site.cluster.asked) == len(names)
        assert max(sum(2 * len(name) + 3 for name in asked) for _, asked, _ in site.cluster.asked) < 4 << 20

    at_site(scenario)


@pytest.mark.parametrize("kind", [CANCEL, MOVE, DELIVER_NOW, REDRIVE])
def test_a_change_by_name_is_decided_by_the_shard_whether_or_not_the_name_can_be_looked_up(kind: int) -> None:
    async def scenario(site: Site) -> None:
        shard, due = shard_of_name(of_client("order-17"), SHARDS), NOW + 60_000 if kind == MOVE else 0
        id_ = site.backend.ids.issue(shard, NOW, 7)
        state = MessageState(id_, "cancelled", "orders", NOW)
        site.cluster.named_found[b"n:order-17"] = NamedMessage(PRINT, state)
        for offset, unreadable in enumerate((Unavailable("no replica answers"), None)):
            site.cluster.unreadable = unreadable
            cancelling = asyncio.create_task(site.gateway.change(kind, ["order-17"], due))
            while await site.bus.end_offset(BUFFER, shard) == offset:  # noqa: ASYNC110
                await asyncio.sleep(0)
            site.answer(shard, offset, Answer.OK)
            (outcome,) = await cancelling
            at = NOW if kind == CANCEL else 0
            assert outcome == ChangeOutcome("order-17" if unreadable else id_, Answer.OK, at)
            assert site.cluster.asked[-1] == (shard, (b"n:order-17",), offset), "as of its own command"
        (record, _) = await site.bus.read(BUFFER, shard, 0, 10)
        meant = command_of(record.frame, NOW, RecordPosition(shard, SHARDS, site.backend.ids))
        assert meant == ByName(kind, of_client("order-17"), due)

    at_site(scenario)


def test_a_change_decodes_each_reference_once_and_that_of_a_direct_message_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name of 32 characters may be an id, and only the checksum tells: a hash for each look."""

    async def scenario(site: Site) -> None:
        ids, decoded = site.backend.ids, Counter[str]()
        read = ids.read
        monkeypatch.setattr(ids, "read", lambda ref: (decoded.update([ref]), read(ref))[1])
        (name,) = names_of_shard(1, 1)
        pending, direct = ids.issue(1, NOW, 7), ids.issue(DIRECT, NOW, 7, direct_checksum("orders"))
        refs = [pending, name.removeprefix(CLIENT).decode(), direct]
        changing = site.gateway.change(CANCEL, refs)
        first, second, third = await when_appended(site, 1, 2, changing, [Answer.OK, Answer.UNKNOWN])
        assert first == ChangeOutcome(pending, Answer.OK, NOW) and second == ChangeOutcome(refs[1], Answer.UNKNOWN)
        assert third == ChangeOutcome(direct, Answer.DELIVERED, NOW)
        assert decoded == {refs[0]: 1, refs[1]: 1, refs[2]: 2}

    at_site(scenario)


def test_names_that_are_looked_up_at_the_same_time_share_a_request() -> None:
    async def scenario(site: Site) -> None:
        lookups, names = NameLookups(site.backend), names_of_shard(0, 4)
        site.cluster.named_found = {name: NamedMessage(PRINT, FIRST) for name in names[:3]}
        first = asyncio.create_task(lookups.messages(0, names[:1], 1))
        others = [asyncio.create_task(lookups.messages(0, [name], at)) for at, name in enumerate(names, 2)]
        assert names[0] in await first
        await asyncio.gather(*others)
        assert site.cluster.asked == [(0, tuple(names), 5)], "none was sent when the others came"
        lookup = lookups.messages(0, names[:1], 6)
        held_up, gate = asyncio.create_task(lookup), asyncio.Event()
        site.cluster.messages_by_name, answer = _after(gate, site.cluster.messages_by_name)  # type: ignore[method-assign]
        await asyncio.wait_for(answer, 5)
        late = [asyncio.create_task(lookups.messages(0, [name], 7)) for name in names]
        await asyncio.sleep(0)
        late[0].cancel()
        gate.set()
        assert (await held_up).keys() == {names[0]}
        for one in late[1:]:
            assert (await one).keys() == set(names[:3]), "the one that gave up cost the others nothing"
        assert site.cluster.asked[1:] == [(0, (names[0],), 6), (0, tuple(names), 7)]
        site.cluster.unreadable = Unavailable("no replica answers")
        with pytest.raises(Unavailable):
            await lookups.messages(0, names, 8)

    at_site(scenario)


def _after(gate: asyncio.Event, ask: Any) -> tuple[Any, asyncio.Future[None]]:
    """Ask only once the gate is open; the future says that somebody waits at it."""
    reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def asking(*arguments: Any) -> Any:
        if not reached.done():
            reached.set_result(None)
        await gate.wait()
        return await ask(*arguments)

    return asking, reached


def test_changes_that_were_made_are_told_although_nobody_says_when_others_ended() -> None:
    async def scenario(site: Site) -> None:
        receipts = await site.receipts(later(), later())

        async def failing(*asked: object) -> list[int]:
            raise Unavailable("no replica answers")

        site.cluster.when_ended = failing  # type: ignore[assignment]
        changing = site.gateway.change(CANCEL, [receipt.id for receipt in receipts])
        said = [Answer.ACCEPTED, Answer.ACCEPTED, Answer.OK, Answer.DELIVERED]
        done, late = await when_appended(site, 0, 4, changing, said)
        assert (done.answer, done.at) == (Answer.OK, NOW)
        assert (late.answer, late.at) == (Answer.DELIVERED, 0)

    at_site(scenario)
