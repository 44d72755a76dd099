"""Leases of a group's messages: pure, under random schedules."""

from __future__ import annotations

import random

import pytest

from duemq.client.consumer.message import Message
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.routes import FORMER
from duemq.client.consumer.work.work import Work
from duemq.relay.groups.leases import Lease, Leases
from tests.unit.consumer.test_consumer_values import Plain


def works(count: int, first: int = 0, size: int = 10) -> list[Work]:
    tracker = OffsetTracker(0)
    return [
        Work(Message(Plain(offset=offset)), FORMER, tracker, offset, size) for offset in range(first, first + count)
    ]


def test_a_receive_takes_what_fits_in_order_and_at_least_one() -> None:
    leases = Leases()
    leases.put(works(5))
    assert [each.work.offset for each in leases.take(3, 25, 1_000, 0)] == [0, 1]
    assert [each.work.offset for each in leases.take(3, 5, 1_000, 0)] == [2]
    assert [each.work.offset for each in leases.take(1, 1_000, 1_000, 0)] == [3]
    assert (leases.ready, leases.leased, leases.leased_bytes) == (1, 4, 40)


def test_an_extended_lease_ends_later_and_a_shortened_one_sooner() -> None:
    leases = Leases()
    leases.put(works(2))
    longer, shorter = leases.take(2, 1_000, 100, 0)
    assert leases.extend(longer.number, 500) and leases.extend(shorter.number, 50)
    assert leases.next_look() == 50
    assert list(leases.expired(49)) == [] and list(leases.expired(50)) == [shorter]
    assert list(leases.expired(499)) == [] and list(leases.expired(500)) == [longer]
    assert not leases.extend(longer.number, 900) and leases.next_look() is None


def test_what_is_given_back_comes_first_and_in_order() -> None:
    leases = Leases()
    leases.put(works(4))
    taken = leases.take(2, 1_000, 100, 0)
    leases.give_back(each.number for each in taken)
    assert [each.work.offset for each in leases.take(4, 1_000, 100, 0)] == [0, 1, 2, 3]


def test_long_leases_that_end_early_or_are_changed_often_leave_nothing_behind() -> None:
    leases = Leases()
    for _ in range(20):
        leases.put(works(1_000))
        for lease in leases.take(1_000, 1 << 30, 43_200_000, 0):
            leases.extend(lease.number, 1_000)
            leases.extend(lease.number, 43_200_000)
            leases.end(lease.number, acked=True)
    assert leases.looks <= 2_000 and leases.leased_bytes == 0


class Worker:
    """Has leases, and may ack, extend or forget them."""

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}


@pytest.mark.parametrize("seed", range(40))
def test_no_message_is_in_two_hands_and_none_is_lost(seed: int) -> None:
    """Against a model: the set of messages and for each the end of its lease. A failed message comes again, with
    another count, at the end of the queue."""
    draw, now, leases = random.Random(seed), 0, Leases()
    workers = [Worker() for _ in range(4)]
    until: dict[int, int] = {}  # by number, as promised
    holder: dict[int, int] = {}  # offset -> number
    put, done, acked = 0, set[int](), set[int]()
    for _ in range(600):
        worker = draw.choice(workers)
        step = draw.choice(("put", "take", "take", "ack", "ack", "nack", "extend", "forget", "back", "time"))
        number = draw.choice([*worker.held, 0])
        if step == "put":
            leases.put(works(3, put))
            put += 3
        elif step == "take":
            for lease in leases.take(draw.randint(1, 4), 1_000, draw.randint(1, 50), now):
                offset = lease.work.offset
                assert offset not in holder and offset not in done, "in one hand at a time, and never after its end"
                holder[offset], until[lease.number] = lease.number, lease.until
                worker.held[lease.number] = lease
        elif step in ("ack", "nack"):
            ended = leases.end(number, acked=step == "ack")
            assert (ended is not None) == (number in until), "an answer is yes exactly while the lease holds"
            if ended is not None:
                del until[number], holder[ended.work.offset]
                done.add(ended.work.offset) if step == "ack" else leases.put([ended.work])
                if step == "ack":
                    acked.add(number)
            assert leases.was_acked(number) == (number in acked), "a repeated ack has the first one's answer"
        elif step == "extend":
            later = now + draw.randint(1, 80)
            assert leases.extend(number, later) == (number in until)
            if number in until:
                until[number] = later
        elif step == "back" and number in until:
            leases.give_back([number])
            del until[number], holder[worker.held[number].work.offset]
        elif step == "forget":
            worker.held.clear()  # it died
        else:
            now = max(now, min((now + draw.randint(0, 30), leases.next_look() or now + 30)))
            for lease in leases.expired(now):
                assert until.pop(lease.number) <= now, "no lease ends before its time"
                del holder[lease.work.offset]
                leases.put([lease.work])
            assert all(end > now for end in until.values()), "each ends at its time"
        assert leases.leased == len(until)
        assert leases.ready + leases.leased + len(done) == put, "nothing is lost"
    assert put and done
