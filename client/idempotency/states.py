"""The states of a key, as a table. Pure. `redis` implements the table in Lua; the same tests check all stores against
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from duemq.client.idempotency.base import Begun, Done, Fresh, InDoubt, Running


class KeyState(Enum):
    ABSENT = auto()  # never begun, released, or forgotten
    RUNNING = auto()
    LAPSED = auto()  # begun but not finished, and the lease has ended
    DONE = auto()


class Event(Enum):
    BEGIN = auto()
    BEGIN_ONCE = auto()  # at most once
    REPEAT = auto()  # a begin by the owner, or by a caller for whom the owner's attempt has certainly ended
    FINISH = auto()  # by the owner, as is RELEASE; from any other caller, both are ignored
    RELEASE = auto()


class ClaimRefusal(Enum):
    """Why an event is refused and leaves the state unchanged."""

    RUNNING = auto()
    DONE = auto()
    IN_DOUBT = auto()
    NOT_OWNER = auto()


NEXT: Final[Mapping[tuple[KeyState, Event], KeyState | ClaimRefusal]] = {
    (KeyState.ABSENT, Event.BEGIN): KeyState.RUNNING,
    (KeyState.ABSENT, Event.BEGIN_ONCE): KeyState.RUNNING,
    (KeyState.ABSENT, Event.REPEAT): KeyState.RUNNING,
    (KeyState.ABSENT, Event.FINISH): ClaimRefusal.NOT_OWNER,
    (KeyState.ABSENT, Event.RELEASE): ClaimRefusal.NOT_OWNER,
    (KeyState.RUNNING, Event.BEGIN): ClaimRefusal.RUNNING,
    (KeyState.RUNNING, Event.BEGIN_ONCE): ClaimRefusal.RUNNING,
    (KeyState.RUNNING, Event.REPEAT): KeyState.RUNNING,
    (KeyState.RUNNING, Event.FINISH): KeyState.DONE,
    (KeyState.RUNNING, Event.RELEASE): KeyState.ABSENT,
    (KeyState.LAPSED, Event.BEGIN): KeyState.RUNNING,
    (KeyState.LAPSED, Event.BEGIN_ONCE): ClaimRefusal.IN_DOUBT,
    (KeyState.LAPSED, Event.REPEAT): KeyState.RUNNING,
    (KeyState.LAPSED, Event.FINISH): KeyState.DONE,
    (KeyState.LAPSED, Event.RELEASE): KeyState.ABSENT,
    (KeyState.DONE, Event.BEGIN): ClaimRefusal.DONE,
    (KeyState.DONE, Event.BEGIN_ONCE): ClaimRefusal.DONE,
    (KeyState.DONE, Event.REPEAT): ClaimRefusal.DONE,
    (KeyState.DONE, Event.FINISH): KeyState.DONE,
    (KeyState.DONE, Event.RELEASE): ClaimRefusal.NOT_OWNER,
}


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The stored row for a key. Times are in epoch ms; from `expires_ms` on, the key counts as absent."""

    owner: str
    since_ms: int
    until_ms: int
    expires_ms: int
    result: bytes | None = None
    """None until the work is done."""

    def state(self, now_ms: int) -> KeyState:
        if now_ms >= self.expires_ms:
            return KeyState.ABSENT
        if self.result is not None:
            return KeyState.DONE
        return KeyState.RUNNING if now_ms < self.until_ms else KeyState.LAPSED


def begin(
    row: KeyRow | None,
    key: bytes,
    owner: str,
    now_ms: int,
    lease_ms: int,
    keep_ms: int,
    at_most_once: bool,
    over: str = "",
) -> tuple[KeyRow | None, Begun]:
    """The new row, and the answer. Raises InDoubt."""
    event = Event.BEGIN_ONCE if at_most_once else Event.BEGIN
    if row is not None and row.owner in (owner, over):
        event = Event.REPEAT
    step = NEXT[_state(row, now_ms), event]
    if step is KeyState.RUNNING:
        until = now_ms + lease_ms
        return KeyRow(owner, now_ms, until, until + keep_ms), Fresh()
    assert row is not None  # an absent key can always begin
    if step is ClaimRefusal.IN_DOUBT:
        raise in_doubt(key, row.owner, row.since_ms)
    if step is ClaimRefusal.DONE:
        assert row.result is not None
        return row, Done(row.result)
    return row, Running(row.owner, row.since_ms, row.until_ms)


def finish(row: KeyRow | None, owner: str, result: bytes, now_ms: int, keep_ms: int) -> tuple[KeyRow | None, bool]:
    if row is None or row.owner != owner or NEXT[state := row.state(now_ms), Event.FINISH] is not KeyState.DONE:
        return row, False
    if state is KeyState.DONE:
        return row, True
    return KeyRow(owner, row.since_ms, row.until_ms, now_ms + keep_ms, result), True


def release(row: KeyRow | None, owner: str) -> tuple[KeyRow | None, bool]:
    """The new row, and whether it was released. The current time does not matter, because an expired row has the same
    effect as a released one."""
    if row is None or row.owner != owner or NEXT[row.state(0), Event.RELEASE] is not KeyState.ABSENT:
        return row, False
    return None, True


def in_doubt(key: bytes, owner: str, since_ms: int) -> InDoubt:
    return InDoubt(
        f"{key!r} was begun by {owner} at {since_ms} and never finished: it must not be begun again (at most once), "
        "and whether it took effect is not known"
    )


def _state(row: KeyRow | None, now_ms: int) -> KeyState:
    return KeyState.ABSENT if row is None else row.state(now_ms)
