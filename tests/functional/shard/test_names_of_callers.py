"""Callers for some topics have their own names, on a real shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from duemq.bus.memory import MemoryLog
from duemq.delay.node_backend import NodeBackend
from duemq.model.callers.access import EVERYTHING, Grant, Scope
from duemq.model.errors import Rejected
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, REDRIVE, Draft, Terms
from duemq.model.messages.names import Name, of_caller, of_client
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.limited_gateway import LimitedGateway
from tests.support.http.proxy_site import running_node

LATER = LAST_MS - 1
ONE, TWO = b"1" * 16, b"2" * 16  # contents


class Site:
    def __init__(self, gateway: CommandGateway) -> None:
        self.all = LimitedGateway(gateway, EVERYTHING, lambda _: None)
        self.gateway = gateway

    def caller(self, caller: str, *topics: str, charge: Callable[[int], None] = lambda _: None) -> LimitedGateway:
        return LimitedGateway(self.gateway, Grant(caller, frozenset(Scope), topics=topics), charge)


@asynccontextmanager
async def site_of(folder: Path) -> AsyncIterator[Site]:
    async with running_node(folder / "data", MemoryLog(), "", 1, 0.0) as node:
        for topic in ("a.x", "b.x"):
            await node.bus.create_topic(topic, 1)
        yield Site(CommandGateway(NodeBackend(node)))


def run(folder: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def inner() -> None:
        async with site_of(folder) as site:
            await scenario(site)

    asyncio.run(inner())


async def send(gateway: LimitedGateway, name: Name, topic: str, content: bytes = ONE) -> Receipt:
    (receipt,) = await gateway.send([Draft(topic, b"p", LATER, name=name, fingerprint=content)])
    assert isinstance(receipt, Receipt), receipt
    return receipt


async def id_of(gateway: LimitedGateway, ref: str) -> str | None:
    state = await gateway.state(ref)
    return None if state is None else state.id


def test_one_name_is_another_message_of_each_caller(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        ann, bob, both = site.caller("ann", "a.*"), site.caller("bob", "b.*"), site.caller("both", "a.*", "b.*")
        sent = [
            (gateway, await send(gateway, name, topic, content))
            for gateway, name, topic, content in (
                (ann, of_caller("ann", "order-17"), "a.x", ONE), (bob, of_caller("bob", "order-17"), "b.x", TWO),
                (site.all, of_client("order-17"), "a.x", TWO),
            )
        ]  # fmt: skip
        assert len({receipt.id for _, receipt in sent}) == 3 and not any(receipt.known for _, receipt in sent)
        for gateway, receipt in sent:
            assert await id_of(gateway, "order-17") == receipt.id
        assert await id_of(both, "order-17") == sent[2][1].id, "one that is not apart"
        again = await send(ann, of_caller("ann", "order-17"), "a.x")
        assert (again.id, again.known, again.conflict) == (sent[0][1].id, True, False)
        (outcome,) = await bob.change(CANCEL, ["order-17"])
        assert (outcome.id, outcome.answer) == (sent[1][1].id, Answer.OK)
        assert [(await gateway.state(one.id)) is not None for gateway, one in sent] == [True] * 3
        assert await id_of(ann, sent[1][1].id) is None

    run(tmp_path, scenario)


def test_what_a_caller_named_before_it_had_names_of_its_own_is_found_cancelled_and_not_sent_again(
    tmp_path: Path,
) -> None:
    """An older proxy put them into the shared space. A caller for other topics sees nothing of them."""

    async def scenario(site: Site) -> None:
        ann, bob = site.caller("ann", "a.*"), site.caller("bob", "b.*")
        before = await send(site.all, of_client("order-17"), "a.x")
        for content in (ONE, TWO):
            again = await send(ann, of_caller("ann", "order-17"), "a.x", content)
            assert (again.id, again.known, again.conflict) == (before.id, True, content == TWO)
            (known,) = await ann.named([(of_caller("ann", "order-17"), content)])
            assert known == again
        new = await send(bob, of_caller("bob", "order-17"), "b.x")
        assert not new.known and new.id != before.id
        assert await id_of(ann, "order-17") == before.id and await id_of(bob, "order-17") == new.id
        (outcome,) = await ann.change(CANCEL, ["order-17"])
        assert (outcome.id, outcome.answer) == (before.id, Answer.OK)
        answers = await ann.send([
            Draft("a.x", b"", LATER), Draft("b.x", b"", LATER),
            Draft("a.x", b"", LATER, name=of_caller("ann", "order-17"), fingerprint=ONE),
            Draft("a.x", b"", LATER, name=of_caller("ann", "new"), fingerprint=ONE),
        ])  # fmt: skip
        assert [one.code if isinstance(one, Rejected) else one.known for one in answers] == [
            False, "forbidden", True, False,
        ]  # fmt: skip

    run(tmp_path, scenario)


def test_a_receipt_does_not_show_a_message_that_is_of_another_topic_by_now(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        ann, name = site.caller("ann", "a.*"), of_caller("ann", "order-17")
        refused = Draft("a.x", b"p", 1, name=name, fingerprint=ONE, expires=1)
        (receipt,) = await ann.send([refused])
        assert isinstance(receipt, Receipt)
        while (state := await ann.state("order-17")) is None or state.status != "dead":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (outcome,) = await site.all.change(REDRIVE, [receipt.id], terms=Terms("", 0, "b.x"))
        assert outcome.answer is Answer.OK
        for content in (ONE, TWO):
            told = await send(ann, name, "a.x", content)
            assert (told.id, told.due, told.conflict) == ("", 0, True)
        assert await ann.named([(name, ONE)]) == [None] and await ann.state("order-17") is None

    run(tmp_path, scenario)
