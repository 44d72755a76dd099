"""The relay from a topic to a broker, and the lease that lets one of several work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from duemq.client.errors import Unreachable
from duemq.client.lease import LEASE_HEADER, LENGTH_S, Lease
from duemq.client.relay import TRIES, BrokerAway, NotPublishable, Relay
from duemq.client.values import Record
from tests.fake_duemq import FakeDuemq

GONE = Unreachable("gone", outcome_unknown=True)


class Outlet:
    """Keeps what is published. `script`: what the next attempts raise; after it `then` is called with each payload."""

    def __init__(self, *script: Exception | None) -> None:
        self.script, self.closed = list(script), 0
        self.got: list[bytes] = []
        self.then: Callable[[bytes], None] = lambda payload: None

    def publish(self, record: Record) -> None:
        if self.script and (error := self.script.pop(0)) is not None:
            raise error
        self.got.append(record.payload)
        self.then(record.payload)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def duemq(monkeypatch: pytest.MonkeyPatch) -> FakeDuemq:
    """Waiting moves its clock."""
    server = FakeDuemq()

    def wait(self: threading.Event, seconds: float) -> bool:
        server.advance(seconds)
        return self.is_set()

    monkeypatch.setattr(threading.Event, "wait", wait)
    return server


def relay(duemq: FakeDuemq, outlet: Outlet, until: int, page: int = 2) -> Relay:
    """Stops when the outlet has so many."""
    client: Any = duemq
    made = Relay(client, "jobs", "r", outlet, page=page, lease=Lease(client, "jobs", "r", clock=duemq.seconds))
    before = outlet.then

    def then(payload: bytes) -> None:
        before(payload)
        if len(outlet.got) >= until:
            made.stop()

    outlet.then = then
    return made


def put(duemq: FakeDuemq, count: int) -> list[bytes]:
    payloads = [b"%d" % n for n in range(count)]
    for payload in payloads:
        duemq.send("jobs", payload)
    return payloads


def test_each_once_in_order_and_the_place_is_kept(duemq: FakeDuemq) -> None:
    sent = put(duemq, 5)
    outlet = Outlet()
    relay(duemq, outlet, 5).run()
    assert outlet.got == sent and outlet.closed == 1
    assert duemq.places["jobs", "r"] == 5
    assert [message.status for message in duemq.messages if message.labels] == ["cancelled"]  # it gave the lease back
    more = Outlet()
    duemq.send("jobs", b"more")
    relay(duemq, more, 1).run()
    assert more.got == [b"more"]


def test_a_broker_that_is_away_is_waited_for(duemq: FakeDuemq) -> None:
    sent = put(duemq, 3)
    outlet = Outlet(None, *[BrokerAway("down")] * 50)
    relay(duemq, outlet, 3).run()
    assert outlet.got == sent and duemq.of("dlq.r").delivered == []


@pytest.mark.parametrize("errors", [[NotPublishable("no")], [RuntimeError("no")] * TRIES])
def test_what_the_broker_will_never_take_goes_to_the_dead_letters(duemq: FakeDuemq, errors: list[Exception]) -> None:
    put(duemq, 3)
    outlet = Outlet(*errors)
    relay(duemq, outlet, 2).run()
    assert outlet.got == [b"1", b"2"]
    (dead,) = duemq.delivered["dlq.r"]
    assert dead.payload == b"0" and dead.headers["reason"].endswith("no") and dead.headers["origin-id"]


def test_an_error_that_passes_is_no_dead_letter(duemq: FakeDuemq) -> None:
    sent = put(duemq, 2)
    outlet = Outlet(*[RuntimeError("no")] * (TRIES - 1))
    relay(duemq, outlet, 2).run()
    assert outlet.got == sent and "dlq.r" not in duemq.delivered


def test_nothing_is_published_twice_because_a_commit_failed(duemq: FakeDuemq) -> None:
    sent = put(duemq, 5)
    outlet = Outlet()

    def then(payload: bytes) -> None:
        if payload == b"1":
            duemq.away["commit"] = GONE
        if payload == b"2":
            duemq.away.clear()

    outlet.then = then
    made = relay(duemq, outlet, 5)
    waits = duemq.advance

    def advance(seconds: float) -> None:
        if duemq.calls.count("commit") > 3:
            duemq.away.clear()
        waits(seconds)

    duemq.advance = advance  # type: ignore[method-assign]
    made.run()
    assert outlet.got == sent and duemq.places["jobs", "r"] == 5


def test_stopped_while_the_broker_is_away(duemq: FakeDuemq) -> None:
    put(duemq, 2)
    outlet = Outlet(None, *[BrokerAway("down")] * 3)
    made = relay(duemq, outlet, 1, page=1000)
    made.run()
    assert outlet.got == [b"0"]
    assert ("jobs", "r") not in duemq.places  # the page was not finished: it comes again


def test_a_duemq_that_is_away_is_waited_for(duemq: FakeDuemq) -> None:
    sent = put(duemq, 2)
    duemq.away["records"] = GONE
    outlet = Outlet()
    made = relay(duemq, outlet, 2)
    waits = duemq.advance

    def advance(seconds: float) -> None:
        if duemq.calls.count("records") > 4:
            duemq.away.clear()
        waits(seconds)

    duemq.advance = advance  # type: ignore[method-assign]
    made.run()
    assert outlet.got == sent


def lease(duemq: FakeDuemq) -> Lease:
    client: Any = duemq
    return Lease(client, "jobs", "r", clock=duemq.seconds)


def test_one_of_two_has_the_lease_until_it_stops(duemq: FakeDuemq) -> None:
    first, second = lease(duemq), lease(duemq)
    for _ in range(20):
        assert first.hold() and not second.hold()
        duemq.advance(LENGTH_S / 2)
    assert duemq.calls.count("send") == 1
    first.release()
    assert second.hold() and not first.hold()


def test_a_lease_whose_holder_died_runs_out(duemq: FakeDuemq) -> None:
    first, second = lease(duemq), lease(duemq)
    assert first.hold()
    duemq.advance(LENGTH_S - 0.001)
    assert not second.hold()
    duemq.advance(0.001)
    assert second.hold()
    assert not first.hold()  # it slept, and finds that it lost it
    assert not first.hold()
    assert [LEASE_HEADER in message.headers for message in duemq.delivered["jobs"]] == [True]


def test_a_lease_holds_as_long_as_it_was_given_where_duemq_is_away(duemq: FakeDuemq) -> None:
    held = lease(duemq)
    assert held.hold()
    duemq.away["reschedule"] = GONE
    duemq.advance(LENGTH_S - 0.001)
    assert held.hold()
    duemq.advance(1.0)
    with pytest.raises(Unreachable):
        held.hold()
    duemq.away.clear()
    assert not held.hold()
    assert held.hold()


def test_of_two_that_try_at_once_at_most_one_gets_it(duemq: FakeDuemq) -> None:
    first, second = lease(duemq), lease(duemq)
    real = duemq.list
    answers: list[bool] = []

    def list_(**options: Any) -> Any:
        found = real(**options)
        if duemq.calls.count("list") == 1:
            answers.append(second.hold())  # all of it between the first one's look and what it sends
        return found

    duemq.list = list_  # type: ignore[method-assign]
    assert not first.hold()
    assert answers == [True]


def test_who_lost_the_lease_in_the_middle_of_a_page_goes_on_where_the_other_one_is(duemq: FakeDuemq) -> None:
    sent = put(duemq, 6)
    other = lease(duemq)
    outlet = Outlet()

    def then(payload: bytes) -> None:
        if payload == b"2":  # it sleeps, and another one does the rest, up to the last
            duemq.advance(LENGTH_S + 1)
            assert other.hold()
            duemq.places["jobs", "r"] = 5
            duemq.advance(1)
        if payload == b"5":
            made.stop()

    outlet.then = then
    made = relay(duemq, outlet, 99)
    made.run()
    assert outlet.got == [*sent[:3], b"5"]


def test_leases_are_not_relayed_and_a_standby_goes_on(duemq: FakeDuemq) -> None:
    assert lease(duemq).hold()  # of one that dies
    sent = put(duemq, 3)
    outlet = Outlet()
    relay(duemq, outlet, 3).run()
    assert outlet.got == sent
    assert duemq.now >= 1_000_000 + LENGTH_S * 1000
