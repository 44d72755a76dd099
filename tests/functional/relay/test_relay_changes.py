"""A relay on a log in memory: destinations that are changed, paused, disabled or slow, and their positions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import RetryOrigin, returned
from duemq.model.destinations.destination import read_destination
from duemq.model.errors import Rejected
from duemq.model.messages.message import Draft
from duemq.model.messages.names import group_cursor
from duemq.model.messages.record import pack_record, unpack_record
from duemq.proxy.destinations.positions import Start, begin_at
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.relay_access import none_at_work
from duemq.relay.base import Reply, Result
from duemq.relay.embedded.log import EmbeddedLog
from duemq.relay.embedded.places import decode_places
from duemq.relay.embedded.source import EmbeddedSource
from duemq.relay.memory import MemoryOutlet
from tests.support.relay.relay_site import FAILED, Site, lag, metric, nobody, payloads, until

pytestmark = pytest.mark.anyio


async def test_an_endpoint_that_is_gone_is_disabled_and_keeps_its_messages(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: Reply(Result.GONE, "410", "no more")
    await site.deliver("orders", b"1", b"2")
    async with site.relay() as relay:
        await until(lambda: site.disabled and "one" not in relay.measured())
        outlet.answer = None
        site.declare("one", topics=["orders"])
        await until(lambda: len(outlet.messages) == 2)
    assert {name for name, _ in site.disabled} == {"one"}
    assert "410" in site.disabled[0][1]


async def test_one_in_trouble_is_no_more_once_it_is_paused_or_begins_anew(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: Reply(Result.AWAY, "refused")
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        await until(lambda: metric(relay, "troubled") == 1)
        site.declare("one", topics=["orders"], paused=True)
        await until(lambda: "one" not in relay.measured())
        assert metric(relay, "troubled") == 0
        site.declare("one", topics=["mail"])  # where nothing is, so that nothing tells how the other side is
        await until(lambda: "one" in relay.measured())
        assert metric(relay, "troubled") == 0


async def test_one_that_is_disabled_is_in_trouble_also_after_a_restart(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: Reply(Result.GONE, "410", "no more")
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        await until(lambda: site.disabled and "one" not in relay.measured())
        assert metric(relay, "troubled") == 1
    async with site.relay() as relay:
        await until(lambda: relay.names)
        assert metric(relay, "troubled") == 1
        site.declare("one", topics=["orders"], paused=True, disabled="410")
        assert metric(relay, "troubled") == 1, "whoever resumes it expects that it goes on"
        outlet.answer = None
        site.declare("one", topics=["orders"])
        await until(lambda: outlet.messages)
        assert metric(relay, "troubled") == 0


async def test_a_paused_destination_gets_nothing_until_it_goes_on(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"], paused=True)
    await site.deliver("orders", b"1")
    async with site.relay():
        await asyncio.sleep(0.05)
        assert not outlet.messages
        site.declare("one", topics=["orders"])
        await until(lambda: outlet.messages)


@pytest.mark.parametrize("how", ["pause", "removal", "stop"])
@pytest.mark.parametrize("held", ["rate", "closed"])
async def test_a_destination_that_ends_hands_out_nothing_that_waits_for_its_turn(
    site: Site, how: str, held: str
) -> None:
    outlet = site.declare("one", topics=["orders"], rate=1 if held == "rate" else 0)
    if held == "closed":
        outlet.concurrency = 1
        outlet.answer = lambda message: Reply(Result.FAILED, "503", "", 600_000, overloaded=True)
    await site.deliver("orders", *(b"%d" % number for number in range(50)))
    async with site.relay() as relay:
        await until(lambda: outlet.messages if held == "rate" else relay.trouble("one").startswith("closed until"))
        outlet.answer = None
        ending, sent = time.monotonic(), len(outlet.messages)
        if how == "pause":
            site.declare("one", topics=["orders"], paused=True)
        elif how == "removal":
            del site.by_name["one"]
            site.changed()
        if how != "stop":
            await until(lambda: outlet.closed)
    assert time.monotonic() - ending < 5, "a handler that runs has 10 s"
    assert outlet.closed and len(outlet.messages) == sent


async def test_in_order_a_failing_key_holds_up_only_itself(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"], ordered=True, retry={"kind": "delays", "delays": [300, 1]})
    seen = 0

    def answer(message: Message) -> Reply:
        nonlocal seen
        seen += message.payload == b"a1"
        return FAILED if message.payload == b"a1" and seen == 1 else Reply(Result.ACCEPTED, "200")

    outlet.answer = answer
    await site.deliver("orders", b"a1", b"a2", key=b"a")
    await site.deliver("orders", b"b1", b"b2", key=b"b")
    async with site.relay():
        await until(lambda: len(outlet.messages) == 4)
    assert payloads(outlet) == [b"b1", b"b2", b"a1", b"a2"]


async def test_in_order_a_failing_key_with_a_long_queue_holds_up_only_itself(site: Site) -> None:
    outlet, mended = (
        site.declare("one", topics=["orders"], ordered=True, retry={"kind": "delays", "delays": [50] * 99}),
        False,
    )
    outlet.answer = lambda message: Reply(Result.ACCEPTED, "200") if message.key == b"b" or mended else FAILED
    await site.deliver("orders", *(b"a%d" % number for number in range(12_000)), key=b"a")
    await site.deliver("orders", b"b", key=b"b")
    async with site.relay() as relay:
        await until(lambda: payloads(outlet) == [b"b"])
        assert relay.measured()["one"].in_hand < 10 and lag(relay) == 12_000
        mended = True
        await until(lambda: len(outlet.messages) == 12_001)
    assert payloads(outlet)[1:] == [b"a%d" % number for number in range(12_000)]


async def test_what_takes_too_long_has_failed_and_slows_the_destination_down(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"], timeout=20, retry={"kind": "delays", "delays": ["1h"]})
    outlet.delay_s = 10
    await site.deliver("orders", *[b"%d" % number for number in range(10)])
    async with site.relay() as relay:
        await until(lambda: len(site.names) == 10)
        shown = relay.measured()["one"].shown()
    assert shown["statuses"] == {"timeout": 10}
    assert shown["limit"] < outlet.concurrency


async def test_one_that_cannot_begin_says_why_and_holds_up_nobody(site: Site) -> None:
    site.declare("missing", topics=["orders"])
    outlet = site.declare("one", topics=["orders"])
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        await until(lambda: outlet.messages)
        figures = relay.figures_of("missing")
        assert figures is not None
        await until(lambda: figures.trouble == "no library")


async def test_a_changed_declaration_is_in_force_and_a_removed_one_ends(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    async with site.relay() as relay:
        await until(lambda: "one" in relay.measured())
        site.declare("one", topics=["mail"])
        await site.deliver("mail", b"1")
        await until(lambda: outlet.messages)
        del site.by_name["one"]
        site.declare("two")
        await until(lambda: relay.names == ["two"])
    assert outlet.closed


async def test_what_was_accepted_behind_a_slow_message_does_not_come_again(site: Site) -> None:
    slow, gate = site.declare("one", topics=["orders"]), asyncio.Event()

    async def send(message: Message) -> Reply:
        if message.payload == b"0":
            await gate.wait()
        slow.messages.append(message)
        return Reply(Result.ACCEPTED, "ok")

    slow.send = send  # type: ignore[method-assign]
    await site.deliver("orders", *(b"%d" % n for n in range(500)), partition=1)
    async with site.relay():  # as good as dead
        await until(lambda: len(slow.messages) == 499)
        await stored(site, lambda place: place.commit == 0 and place.done == ((1, 500),))
        site.outlets["one"] = outlet = MemoryOutlet()
        async with site.relay() as relay:
            await until(lambda: outlet.messages)
            await site.deliver("orders", b"last", partition=1)
            await until(lambda: len(outlet.messages) == 2)
            await stored(site, lambda place: place.commit == 501)
            assert lag(relay) == 0
    assert payloads(outlet) == [b"0", b"last"]


async def stored(site: Site, condition: Callable[[FetchPosition], bool]) -> None:
    """Wait for what is stored of partition 1 of the topic `orders`."""
    info = await site.bus.topic("orders")
    assert info is not None
    while True:
        place = await site.bus.get_consumer_cursor("orders", group_cursor("destination.one"))
        if place is not None and condition(decode_places(place, info)[1]):
            return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(("start", "again"), [("last", []), ("first", [b"1", b"2"])])
@pytest.mark.parametrize("unbound", [True, False], ids=["another topic meanwhile", "removed meanwhile"])
async def test_a_group_begins_where_it_was_put_though_the_one_before_it_ends_slowly(
    site: Site, start: Start, again: list[bytes], unbound: bool
) -> None:
    outlet = site.declare("one", topics=["orders"], concurrency=1)
    outlet.gate = asyncio.Event()
    await site.deliver("orders", b"1", b"2")
    async with site.relay() as relay:
        await until(lambda: outlet.in_flight)
        if unbound:
            site.declare("one", topics=["mail"])
        else:
            del site.by_name["one"]
            site.changed()
        begin = begin_at(site.bus, start, relay.ended)
        declared = read_destination({"name": "one", "url": "https://h.example/", "topics": ["orders"]})
        beginning = asyncio.ensure_future(begin(declared, ["orders"]))
        await asyncio.sleep(0.05)
        outlet.gate.set()
        await beginning
        site.declare("one", topics=["orders"])
        await site.deliver("orders", b"3")
        await until(lambda: b"3" in payloads(outlet))
    assert payloads(outlet)[0] == b"1", "what was in flight is handed on"
    assert payloads(outlet)[1:] == [*again, b"3"]


async def test_a_destination_of_a_name_that_was_removed_gets_no_retry_of_the_former_one(site: Site) -> None:
    """Whether it lies in the topic of retries already, or is still in the wheel."""
    old = site.declare("one", start_id="a.1")
    old.answer = lambda message: FAILED
    schedule, wheel = site.schedule, list[Draft]()

    async def hold(drafts: Sequence[Draft]) -> list[Receipt]:
        wheel.extend(drafts)
        return [Receipt("new", "scheduled", draft.topic, 0) for draft in drafts]

    site.schedule = hold  # type: ignore[method-assign]
    await site.deliver("destination.one", b"read", b"waiting")
    async with site.relay():
        await until(lambda: len(wheel) == 2)
    site.schedule = schedule  # type: ignore[method-assign]
    await site.schedule(wheel[:1])
    new = read_destination({"name": "one", "url": "https://h.example/", "topics": ["orders"]})
    await begin_at(site.bus, "first", none_at_work)(new, [new.retry_topic, "orders"])
    del site.outlets["one"]
    outlet = site.declare("one", topics=["orders"], start_id="b.1")
    outlet.answer = lambda message: FAILED if message.attempt == 1 else Reply(Result.ACCEPTED, "200")
    async with site.relay():
        await site.schedule(wheel[1:])
        await site.deliver("orders", b"its own")
        await site.filled("dlq.destination.one", 1)
        await until(lambda: b"its own" in payloads(outlet))
    letters = [unpack_record(each.frame) for each in await site.bus.read("dlq.destination.one", 0, 0, 10)]
    assert [(each.value, dict(each.headers)["x-duemq-reason"]) for each in letters] == [
        (wheel[1].payload, b"former_destination")
    ]
    assert payloads(outlet) == [b"its own"]


@pytest.mark.parametrize(("by", "now"), [("", "b"), ("b", ""), ("b", "b")])
async def test_a_retry_counts_where_it_is_not_known_whose_it_is(site: Site, by: str, now: str) -> None:
    """As versions are mixed: those before wrote none."""
    outlet = site.declare("one", topics=["orders"], start_id=f"{now}.2" if now else "2")
    origin = RetryOrigin("orders", 0, 7, "id", 1, instance=by)
    await site.bus.create_topic("retry.destination.one", 1)
    record = pack_record(None, [*returned((), origin, "failed", "no")], b"again")
    await site.bus.append({("retry.destination.one", 0): [record]})
    async with site.relay():
        await until(lambda: payloads(outlet) == [b"again"])
    assert outlet.messages[0].headers == []


async def test_the_position_of_a_paused_destination_is_renewed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what fails for one fails for no other."""
    renewed = list[tuple[str, Sequence[str]]]()

    async def renew(log: EmbeddedLog, topics: Sequence[str]) -> None:
        renewed.append((log.group, topics))
        if log.group == "destination.bad":
            raise RuntimeError("no broker")

    monkeypatch.setattr(EmbeddedLog, "renew", renew)
    monkeypatch.setattr("duemq.relay.relay._RENEW_SOON_S", 0.01)
    for name, fields in (("bad", {"disabled": "410"}), ("paused", {"paused": True}), ("active", {})):
        site.declare(name, topics=["orders"], **fields)
    async with site.relay():
        await until(lambda: len(renewed) == 2)
    assert renewed == [
        (f"destination.{each}", ("orders", f"destination.{each}", f"retry.destination.{each}"))
        for each in ("bad", "paused")
    ], "Kafka forgets the offsets of topics that no member subscribes to"


async def test_one_that_ends_slowly_holds_up_no_other(site: Site) -> None:
    slow, other = site.declare("slow", topics=["orders"]), site.declare("other", topics=["mail"])
    slow.gate = asyncio.Event()
    await site.deliver("orders", b"1", b"2")
    async with site.relay() as relay:
        await until(lambda: slow.in_flight)
        site.declare("slow", topics=["orders"], rate=7)
        site.declare("new", topics=["mail"])
        site.declare("other", topics=["mail"], paused=True)
        await until(lambda: set(relay.measured()) == {"new"})
        await site.deliver("mail", b"3")
        await until(lambda: site.outlets["new"].messages)
        assert slow.in_flight and not other.messages
        slow.gate.set()
        await until(lambda: payloads(slow) == [b"1", b"2"])
        await until(lambda: "slow" in relay.measured())
        await site.deliver("orders", b"4")
        await until(lambda: payloads(slow) == [b"1", b"2", b"4"])


async def test_a_retry_is_late_by_its_first_due_time(site: Site) -> None:
    """And the other side is told of no other: a body that is signed stays the same."""
    outlet, dues = site.declare("one", topics=["orders"]), list[int | None]()

    def answer(message: Message) -> Reply:
        dues.append(message.origin.due_ms)
        return FAILED if message.attempt < 3 else Reply(Result.ACCEPTED, "200")

    outlet.answer = answer
    await site.bus.create_topic("orders", 1)
    await site.bus.append({("orders", 0): [pack_record(None, [("duemq-id", b"a"), ("duemq-due", b"400")], b"1")]})
    async with site.relay() as relay:
        await until(lambda: outlet.messages)
        assert relay.measured()["one"].shown()["lateness_ms"]["p50"] == 1_000, "600 ms: its clock says 1,000"
    assert dues == [400, 400, 400]


async def test_a_group_at_work_is_put_nowhere(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.relay.relay._ENDED_S", 0.05)
    site.declare("one", topics=["orders"])
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        await until(lambda: "one" in relay.measured())
        with pytest.raises(Rejected, match=r"a relay is at work for destination\.one") as raised:
            await begin_at(site.bus, "first", relay.ended)(site.by_name["one"], ["orders"])
        assert raised.value.code == "conflict"
        await begin_at(site.bus, "first", relay.ended)(site.by_name["one"], ["mail"])  # which it does not read


async def test_partitions_that_are_held_do_not_keep_it_busy(site: Site) -> None:
    await site.deliver("orders", b"1", b"2")
    source = EmbeddedSource(lambda: site.bus, "group", ["orders"], nobody, nobody)
    await source.start()
    try:
        (partition,) = await source.pull(1_000, 1)
        source.hold([partition])
        while await source.pull(0, 10):
            pass
        began = time.monotonic()
        assert await source.pull(200, 10) == {}
        assert time.monotonic() - began >= 0.15
        source.hold([])
        assert [record.value for record in (await source.pull(1_000, 10))[partition]] == [b"2"]
    finally:
        await source.stop()
