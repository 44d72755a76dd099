"""The relay from a topic to a broker, and the lease that lets one of several work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from duemq.client.http.errors import BadHeader, ConsumerInUse, DiskFull, Forbidden, RateLimited, Unreachable
from duemq.client.http.values import Record
from duemq.client.relay.lease import LEASE_HEADER, LENGTH_S, Alone, Lease
from duemq.client.relay.relay import RETRIED, BrokerAway, NoPlace, NotPublishable, Relay, Start
from duemq.client.retry_levels import LEVELS_MS, RETRIES
from tests.support.servers.fake_duemq import FakeDuemq

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


def relay(
    duemq: FakeDuemq,
    outlet: Outlet,
    until: int,
    page: int = 2,
    *,
    start: Start | None = "first",
    length_s: float = LENGTH_S,
) -> Relay:
    """Stops when the outlet has so many."""
    client: Any = duemq
    own = Lease(client, "jobs", "r", length_s=length_s, clock=duemq.seconds)
    made = Relay(client, "jobs", "r", outlet, page=page, lease=own, start=start, clock=duemq.seconds)
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


def test_what_is_no_message_for_the_broker_goes_to_the_dead_letters(duemq: FakeDuemq) -> None:
    put(duemq, 3)
    outlet = Outlet(NotPublishable("no"))
    relay(duemq, outlet, 2).run()
    assert outlet.got == [b"1", b"2"]
    (dead,) = duemq.delivered["dlq.r"]
    assert dead.payload == b"0" and dead.headers["reason"].endswith("no") and dead.headers["origin-id"]


class Refusing(Outlet):
    """Refuses one payload so often."""

    def __init__(self, payload: bytes, times: int = 10**9, error: Exception | None = None) -> None:
        super().__init__()
        self.refused, self.left, self.error = payload, times, error or RuntimeError("no")
        self.at: list[int] = []
        self.now: Callable[[], int] = lambda: 0

    def publish(self, record: Record) -> None:
        if record.payload == self.refused and self.left:
            self.left -= 1
            self.at.append(self.now())
            raise self.error
        super().publish(record)


def test_what_the_broker_refuses_comes_back_and_holds_up_no_other(duemq: FakeDuemq) -> None:
    put(duemq, 3)
    outlet = Refusing(b"0", times=2)
    outlet.now = lambda: duemq.now
    started = duemq.now
    relay(duemq, outlet, 3).run()
    assert outlet.got == [b"1", b"2", b"0"] and "dlq.r" not in duemq.delivered
    assert [at - started for at in outlet.at] == [0, pytest.approx(LEVELS_MS[2], abs=2000)]


def test_what_the_broker_never_takes_is_a_dead_letter_after_all_retries(duemq: FakeDuemq) -> None:
    put(duemq, 2)
    outlet = Refusing(b"0")
    made = relay(duemq, outlet, 9)
    stop_when(made, duemq, lambda: made.buried == 1)
    made.run()
    assert outlet.got == [b"1"] and len(outlet.at) == RETRIES + 1
    (dead,) = duemq.delivered["dlq.r"]
    assert dead.payload == b"0" and dead.headers["reason"] == "RuntimeError: no"
    assert dead.headers[RETRIED] == str(RETRIES)


def test_records_that_differ_are_no_repeats_of_one_another_whatever_their_places(duemq: FakeDuemq) -> None:
    """A topic that was made again has the same places again. The text of the error is no difference."""
    made = relay(duemq, Outlet(), 1)
    first, second = (Record("t", 0, 7, 1, "k", payload, {}) for payload in (b"a", b"b"))
    for record, reason in ((first, "one"), (second, "one"), (first, "two")):
        made._send_dead("dlq.r", record, {"reason": reason, "origin-id": "o"})
    assert [dead.payload for dead in duemq.delivered["dlq.r"]] == [b"a", b"b"]


def test_a_retry_that_duemq_cannot_take_now_is_waited_for(duemq: FakeDuemq) -> None:
    sent = put(duemq, 2)
    outlet = Refusing(b"0", times=1)
    made = relay(duemq, outlet, 2)
    real, failed = duemq.send, [RateLimited("5/s", 2), GONE]

    def send(topic: str, *arguments: Any, **options: Any) -> Any:
        if RETRIED in options.get("headers", ()) and failed:
            error = failed.pop()
            if not failed:
                real(topic, *arguments, **options)  # it came, and its answer was lost
            raise error
        return real(topic, *arguments, **options)

    duemq.send = send  # type: ignore[method-assign]
    made.run()
    assert outlet.got == [sent[1], sent[0]] and len(duemq.of("jobs").delivered) == 3


def test_a_rate_limit_of_duemq_is_waited_for(duemq: FakeDuemq) -> None:
    sent = put(duemq, 1)
    outlet = Outlet()
    made = relay(duemq, outlet, 1)
    duemq.away["send"] = RateLimited("the key sends more than 5 messages/s", 3)
    before, waits = duemq.now, duemq.advance

    def advance(seconds: float) -> None:
        assert seconds >= 3 or not duemq.away
        duemq.away.clear()
        waits(seconds)

    duemq.advance = advance  # type: ignore[method-assign]
    made.run()
    assert outlet.got == sent and duemq.now >= before + 3000


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


@pytest.mark.parametrize("behind_s", [-600, 30, 70, 600])
def test_a_lease_goes_by_the_servers_clock_whatever_this_machines_says(duemq: FakeDuemq, behind_s: int) -> None:
    duemq.now = int(time.time() + behind_s) * 1000
    first, second = lease(duemq), lease(duemq)
    for _ in range(4):
        assert first.hold() and not second.hold()
        duemq.advance(LENGTH_S / 2)
    assert duemq.calls.count("send") <= 2


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


def test_a_relay_goes_on_where_another_one_stored_the_place_meanwhile(duemq: FakeDuemq) -> None:
    sent = put(duemq, 4)
    outlet = Outlet()
    made = relay(duemq, outlet, 4, page=2)
    real = duemq.commit

    def commit(topic: str, consumer: str, cursor: str) -> None:
        if duemq.calls.count("commit") == 0:
            duemq.places["jobs", "r"] = 1
            duemq.calls.append("commit")
            raise ConsumerInUse("consumer_in_use", "another process commits")
        real(topic, consumer, cursor)

    duemq.commit = commit  # type: ignore[method-assign]
    made.run()
    assert outlet.got == [*sent[:2], *sent[1:3]] and duemq.places["jobs", "r"] == 3


def test_leases_are_not_relayed_and_a_standby_goes_on(duemq: FakeDuemq) -> None:
    assert lease(duemq).hold()  # of one that dies
    sent = put(duemq, 3)
    outlet = Outlet()
    relay(duemq, outlet, 3).run()
    assert outlet.got == sent
    assert duemq.now >= 1_000_000 + LENGTH_S * 1000


# --- where it begins ----------------------------------------------------------------------------------------------


def stop_after_polls(made: Relay, duemq: FakeDuemq, polls: int) -> None:
    first = len(duemq.calls)
    stop_when(made, duemq, lambda: duemq.calls[first:].count("records") >= polls)


def stop_when(made: Relay, duemq: FakeDuemq, holds: Callable[[], bool]) -> None:
    """Asked at each poll."""
    real = duemq.records

    def records(topic: str, **options: Any) -> Any:
        if holds():
            made.stop()
        return real(topic, **options)

    duemq.records = records  # type: ignore[method-assign]


def test_without_a_place_it_begins_in_a_topic_with_messages_only_as_told(duemq: FakeDuemq) -> None:
    sent = put(duemq, 3)
    refused = Outlet()
    with pytest.raises(NoPlace, match="consumer r has no position in topic jobs"):
        relay(duemq, refused, 1, start=None).run()
    assert (refused.got, refused.closed, duemq.places) == ([], 1, {})
    assert [message.status for message in duemq.messages if message.labels] == ["cancelled"]

    last = Outlet()
    made = relay(duemq, last, 1, start="last")
    stop_after_polls(made, duemq, 3)
    made.run()
    assert last.got == [] and duemq.places["jobs", "r"] == 3
    duemq.send("jobs", b"new")
    relay(duemq, last, 1, start="last").run()
    assert last.got == [b"new"]  # it has a place now

    duemq.places.clear()
    first = Outlet()
    relay(duemq, first, 4, start="first").run()
    assert first.got == [*sent, b"new"]


@pytest.mark.parametrize("start", [None, "last", "first"])
def test_a_place_goes_before_what_was_told(duemq: FakeDuemq, start: Start | None) -> None:
    sent = put(duemq, 5)
    duemq.places["jobs", "r"] = 2
    outlet = Outlet()
    relay(duemq, outlet, 3, start=start).run()
    assert outlet.got == sent[2:]


@pytest.mark.parametrize("start", [None, "last"])
def test_in_a_topic_without_messages_its_place_is_stored_before_the_first_comes(
    duemq: FakeDuemq, start: Start | None
) -> None:
    assert lease(duemq).hold()  # of one that dies: it comes due, and is no message
    duemq.advance(LENGTH_S + 1)
    outlet = Outlet(*[BrokerAway("down")] * 3)
    made = relay(duemq, outlet, 9, start=start)
    real = duemq.commit

    def commit(topic: str, consumer: str, cursor: str) -> None:
        real(topic, consumer, cursor)
        if not duemq.of("jobs").delivered:
            duemq.send("jobs", b"first")
            duemq.away["commit"] = GONE
        outlet.then = lambda payload: made.stop()

    duemq.commit = commit  # type: ignore[method-assign]
    made.run()
    assert outlet.got == [b"first"] and duemq.places["jobs", "r"] == 1  # killed before the page's place was stored
    duemq.away.clear()
    again = Outlet()
    relay(duemq, again, 1, start=start).run()
    assert again.got == [b"first"]


def test_what_is_gone_from_a_topic_cannot_be_done_twice(duemq: FakeDuemq) -> None:
    put(duemq, 5)
    duemq.trimmed["jobs"] = 5
    outlet = Outlet()
    made = relay(duemq, outlet, 1, start=None)
    stop_after_polls(made, duemq, 2)
    made.run()
    assert outlet.got == []


def test_the_place_in_a_topic_that_was_made_anew_is_none(duemq: FakeDuemq) -> None:
    sent = put(duemq, 2)
    duemq.places["jobs", "r"] = 900
    with pytest.raises(NoPlace):
        relay(duemq, Outlet(), 1, start=None).run()
    outlet = Outlet()
    relay(duemq, outlet, 2, start="first").run()
    assert outlet.got == sent


def test_the_place_is_stored_now_and_then_though_nothing_comes(
    duemq: FakeDuemq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.relay.relay.STORE_EVERY_S", 40.0)
    put(duemq, 1)
    outlet = Outlet()
    made = relay(duemq, outlet, 9)
    stop_after_polls(made, duemq, 100)  # of a second each
    outlet.then = lambda payload: duemq.calls.clear()
    made.run()
    assert outlet.got == [b"0"] and duemq.calls.count("commit") == 3  # the page's own, and two
    assert duemq.calls.count("place") == 0


# --- the lease and the dead letters -------------------------------------------------------------------------------


def test_a_short_lease_does_not_run_out_while_nothing_comes(duemq: FakeDuemq) -> None:
    made = relay(duemq, Outlet(), 1, length_s=1.0)
    stop_after_polls(made, duemq, 100)
    made.run()
    assert duemq.calls.count("send") == 1 and LEASE_HEADER not in str(duemq.delivered)


@pytest.mark.parametrize("length_s", [0.0, 0.99, -1.0, float("nan"), float("inf")])
def test_a_lease_that_cannot_be_renewed_in_time_is_refused(duemq: FakeDuemq, length_s: float) -> None:
    client: Any = duemq
    with pytest.raises(ValueError, match="1 s or more"):
        Lease(client, "jobs", "r", length_s=length_s)


def test_dead_letters_that_duemq_cannot_take_now_are_waited_for_and_nothing_is_published_again(
    duemq: FakeDuemq,
) -> None:
    sent = put(duemq, 3)
    outlet = Outlet(None, NotPublishable("no"))
    made = relay(duemq, outlet, 2, page=10)
    real, failed = duemq.send, [DiskFull("full"), GONE, GONE]

    def send(topic: str, *arguments: Any, **options: Any) -> Any:
        if topic == "dlq.r" and failed:
            error = failed.pop()
            if not failed:
                real(topic, *arguments, **options)  # it came, and its answer was lost
            raise error
        return real(topic, *arguments, **options)

    duemq.send = send  # type: ignore[method-assign]
    made.run()
    assert outlet.got == [sent[0], sent[2]] and made.buried == 1
    assert [dead.payload for dead in duemq.delivered["dlq.r"]] == [sent[1]]


def test_a_strangers_record_that_duemq_does_not_take_stops_nobody(duemq: FakeDuemq) -> None:
    class Unsayable(Exception):
        def __str__(self) -> str:
            raise ValueError

    put(duemq, 2)
    outlet = Refusing(b"0", error=Unsayable())
    made = relay(duemq, outlet, 9, page=10)
    stop_when(made, duemq, lambda: made.buried == 1)
    real = duemq.send

    def send(topic: str, payload: bytes = b"", **options: Any) -> Any:
        if topic == "dlq.r" and payload:
            raise BadHeader("bad_header", "a header without a name")
        return real(topic, payload, **options)

    duemq.send = send  # type: ignore[method-assign]
    made.run()
    (dead,) = duemq.delivered["dlq.r"]
    assert outlet.got == [b"1"] and dead.payload == b"" and dead.headers["origin-id"].startswith("id")


def test_a_refusal_ends_it(duemq: FakeDuemq) -> None:
    duemq.away["place"] = Forbidden("forbidden", "not for consumers")
    with pytest.raises(Forbidden):
        relay(duemq, Outlet(), 1).run()


def test_with_a_full_disk_a_relay_starts_if_it_is_alone(duemq: FakeDuemq) -> None:
    sent = put(duemq, 3)
    duemq.places["jobs", "r"] = 1
    duemq.away["send"] = DiskFull("the disk is full")
    outlet = Outlet()
    client: Any = duemq
    made = Relay(client, "jobs", "r", outlet, lease=Alone(), clock=duemq.seconds)
    outlet.then = lambda payload: made.stop()
    made.run()
    assert outlet.got == sent[1:] and duemq.places["jobs", "r"] == 3
    assert "send" not in duemq.calls[3:] and "list" not in duemq.calls


def test_a_relay_that_has_its_lease_goes_on_with_a_full_disk(duemq: FakeDuemq) -> None:
    outlet = Outlet()
    made = relay(duemq, outlet, 1, length_s=1.0)
    stop_after_polls(made, duemq, 50)
    real = duemq.records

    def records(topic: str, **options: Any) -> Any:
        duemq.away["send"] = DiskFull("the disk is full")
        return real(topic, **options)

    duemq.records = records  # type: ignore[method-assign]
    made.run()
    assert duemq.calls.count("send") == 1 and duemq.calls.count("reschedule") > 10
