"""Which connection is closed, and when: over virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.web.connection.connections import ConnectionLimits, Connections

LIMITS = ConnectionLimits(connections=3, head_s=10, body_s=60, write_s=30, keep_alive_s=75, unsent_bytes=100)


class Fake:
    """A connection as `Connections` sees it."""

    def __init__(self, since: float, *, asked: bool = True, can_ask_again: bool = False, unsent: int = 0) -> None:
        self.since, self.has_asked, self.can_ask_again = since, asked, can_ask_again
        self.head_since: float | None = None
        self.unread_since: float | None = None
        self.sends_body = False
        self.closed = False
        self.transport = SimpleNamespace(abort=self._abort, get_write_buffer_size=lambda: unsent)

    def _abort(self) -> None:
        self.closed = True


def added(connections: Connections, *fakes: Fake, served: bool = False) -> None:
    for fake in fakes:
        connections.add(cast(Any, fake))
        if served:
            connections.begin(cast(Any, fake))


def test_who_is_idle_for_longest_makes_room_first() -> None:
    connections = Connections(LIMITS)
    idle, poll, young = Fake(0), Fake(0, can_ask_again=True), Fake(9.5)
    added(connections, poll, served=True)
    added(connections, young, idle)
    connections.begin(cast(Any, young))
    connections.finish(cast(Any, young))
    added(connections, Fake(10))
    assert (idle.closed, poll.closed, young.closed) == (True, False, False)
    added(connections, Fake(10))
    assert (poll.closed, young.closed) == (True, False)
    assert len(connections) == 3


def test_who_has_asked_for_nothing_makes_room_before_who_has_been_idle_for_longer() -> None:
    connections = Connections(LIMITS)
    regular, silent, young = Fake(0), Fake(5, asked=False), Fake(9.5, asked=False)
    added(connections, regular, served=True)
    connections.finish(cast(Any, regular))
    added(connections, silent, young)
    added(connections, Fake(10, asked=False))
    assert (silent.closed, regular.closed) == (True, False)
    added(connections, Fake(10.2, asked=False))
    assert (regular.closed, young.closed) == (True, False)


def test_then_who_does_not_read_then_who_can_ask_again_and_nobody_who_changes() -> None:
    connections = Connections(LIMITS)
    change, poll, unread = Fake(0), Fake(1, can_ask_again=True), Fake(2)
    added(connections, change, poll, unread, served=True)
    unread.unread_since = 5
    connections.does_not_read(cast(Any, unread))
    newcomers = [Fake(10), Fake(10), Fake(10)]
    added(connections, newcomers[0])
    assert unread.closed and not poll.closed
    added(connections, newcomers[1])
    assert poll.closed and not any(one.closed for one in newcomers)
    for newcomer in newcomers[:2]:
        connections.begin(cast(Any, newcomer))
    added(connections, newcomers[2])
    assert newcomers[2].closed  # all others are served
    assert not change.closed


@pytest.mark.parametrize(
    ("change", "closed_after"),
    [
        ({}, 75),
        ({"has_asked": False}, 10),
        ({"head_since": 20.0}, 30),
        ({"head_since": -20.0}, 10),  # it was sent while the request before was served
        ({"sends_body": True}, 60),
        ({"unread_since": 1.0}, 31),
    ],
)
def test_who_is_idle_is_closed_in_its_time(change: dict[str, Any], closed_after: float) -> None:
    connections = Connections(LIMITS)
    fake = Fake(0)
    for name, value in change.items():
        setattr(fake, name, value)
    added(connections, fake)
    connections.close_overdue(closed_after)
    assert not fake.closed
    connections.close_overdue(closed_after + 0.1)
    assert fake.closed and len(connections) == 0


def test_who_is_served_may_take_as_long_as_it_takes_but_for_its_body() -> None:
    connections = Connections(LIMITS)
    poll, upload = Fake(0), Fake(0)
    upload.sends_body = True
    added(connections, poll, upload, served=True)
    connections.close_overdue(60)
    assert not upload.closed
    connections.close_overdue(61)
    assert upload.closed
    connections.close_overdue(1e6)
    assert not poll.closed


def test_a_client_that_does_not_read_makes_room_at_once_for_the_next_one() -> None:
    """A look every few seconds would let a fast abuser have any number of them meanwhile."""
    connections = Connections(LIMITS)
    fakes = [Fake(0, unsent=60) for _ in range(3)]
    added(connections, *fakes, served=True)
    for fake in fakes:
        connections.does_not_read(cast(Any, fake))
    assert [fake.closed for fake in fakes] == [True, False, False]
    connections.reads(cast(Any, fakes[1]))
    connections.does_not_read(cast(Any, fakes[1]))
    last = Fake(0, unsent=60)
    added(connections, last, served=True)
    connections.does_not_read(cast(Any, last))
    assert [fake.closed for fake in fakes] == [True, False, True], "who has read since is spared"
    connections.remove(cast(Any, fakes[1]))
    connections.reads(cast(Any, last))
    assert connections.unsent == 0


def test_what_is_unsent_is_bounded_and_the_log_counts(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(LIMITS)
    fakes = [Fake(0, unsent=60) for _ in range(3)]
    added(connections, *fakes, served=True)
    for fake in fakes:
        fake.unread_since = 0.5
        connections.does_not_read(cast(Any, fake))
    with caplog.at_level("INFO"):
        connections.close_overdue(1)
        assert [fake.closed for fake in fakes] == [True, True, False]
        connections.close_overdue(2)
    assert [record.getMessage() for record in caplog.records] == [
        "2 connections were closed: the client does not read its answer, and too much is unsent"
    ]


def test_who_has_gone_is_not_known_any_more() -> None:
    connections = Connections(LIMITS)
    fake = Fake(0)
    added(connections, fake, served=True)
    connections.remove(cast(Any, fake))
    connections.finish(cast(Any, fake))
    assert len(connections) == 0
