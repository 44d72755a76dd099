"""Decides when a message whose handler failed comes back, or that it becomes a dead letter. Pure.

The default is RocketMQ's rule: after n retries a message comes back at delay level 3 + n (10 s, 30 s, 1 m ... 2 h), and
after 16 retries it goes to the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

from duemq.client.http.times import delay_ms, is_naive, to_ms
from duemq.model.errors import Rejected
from duemq.model.timing import CLASSIC_LEVELS, FIRST_MS, LAST_MS, parse_duration, parse_instant, parse_levels

LEVELS_MS: Final = parse_levels(CLASSIC_LEVELS)
"""The delays of levels 1 to 18, ms. They are the same on all servers, because a retry is a plain record
(docs/guides/kafka.md)."""
RETRIES: Final = 16
"""How often a message comes back before it goes to the dead letters."""
_FIRST_LEVEL = 3
_HEADER = {"level": "DELAY", "after": "duemq-delay", "at": "duemq-deliver-at"}
# "after" is limited so that the message is due before the year 10000.
_MAX_MS: Final = {"level": LAST_MS, "after": LAST_MS // 2, "at": LAST_MS}
_MIN_MS: Final = {"level": 0, "after": 0, "at": FIRST_MS}
_LONGEST_PAUSE_S, _PAUSE_S = 60.0, 1.0
_PAUSE_GROWTH = 1.5  # the end of an outage of t seconds is detected within about t/2 seconds, and a retry is cheap


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait until a message comes back. `kind` and `value`: a delay level; ms after the log has accepted the retry;
    or an instant (epoch ms).

    `counts`: whether the retry uses up one of the policy's retries; it does not affect the time.
    """

    kind: Literal["level", "after", "at"]
    value: int
    counts: bool = field(default=True, compare=False)

    @property
    def header(self) -> tuple[str, bytes]:
        """The header that encodes the wait in a record."""
        return _HEADER[self.kind], b"%d" % self.value

    def ms(self, now: int) -> int:
        """How long the wait lasts, in ms, if it begins at `now` (epoch ms)."""
        if self.kind == "level":
            return LEVELS_MS[min(self.value, len(LEVELS_MS)) - 1] if self.value > 0 else 0
        return max(self.value - now, 0) if self.kind == "at" else self.value


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message does not come back. `reason`: `retries` (all are used up), `rejected` (by the handler), `in_doubt`,
    `no_handler`, and `too_large` or `malformed` for a message that duemq cannot accept."""

    reason: str


class RetryLater(Exception):
    """Raised by a handler to have the message retried later. Pass one of `delay`, `level` and `at`, or none to follow
    the policy.

    `delay`: a timedelta, or text such as "90s"; `at`: an aware datetime, epoch ms, or RFC 3339 text; `level`: 1 to 18;
    a higher level means 18, and one below 0 the dead letters. If the level or delay is zero or the time has passed, the
    policy decides: such values come from another system that was asked when to retry. The retry counts towards the
    policy's limit, unless a subclass sets `counts` to False because the message itself has not failed.
    """

    counts = True

    def __init__(
        self,
        reason: str = "",
        *,
        delay: timedelta | str | None = None,
        level: int | None = None,
        at: datetime | int | str | None = None,
    ) -> None:
        super().__init__(reason or "requested by the handler")
        if sum(each is not None for each in (delay, level, at)) > 1:
            raise Rejected("both_times", "give only one of delay, level and at", "delay")
        self.level = level
        self.wait: Wait | None = None
        if delay is not None:
            self.wait = Wait("after", _delay(delay, "delay"))
        elif at is not None:
            self.wait = Wait("at", _instant(at))
        elif level is not None:
            self.wait = Wait("level", max(level, 0))


class Reject(Exception):
    """Raised by a handler if the message can never be handled. It becomes a dead letter at once, with this reason."""

    reason = "rejected"


class Pause(Exception):
    """Raised by a handler if something that all handlers need is unreachable, such as a database or an idempotency
    store.

    The message stays in hand and is retried in this process; that does not count as a retry. Until then the consumer
    neither starts nor pulls another message. `after_s`: the wait (s) before it is retried; it grows with each pause of
    the same message, up to a minute.
    """

    def __init__(self, reason: str = "", *, after_s: float = 1.0) -> None:
        super().__init__(reason or "requested by the handler")
        self.after_s = after_s


def pause_s(error: Pause, before: float | None) -> float:
    """How long the consumer pauses (s). `before`: the last pause, if this message keeps pausing."""
    wait_s = error.after_s
    if not isinstance(wait_s, int | float) or not 0 < wait_s:  # also true for NaN
        wait_s = _PAUSE_S
    return min(wait_s if before is None else max(wait_s, _PAUSE_GROWTH * before), _LONGEST_PAUSE_S)


class Policy(Protocol):
    """Decides how long a message waits. `retried`: how often it was retried before. None if its retries are used
    up."""

    def wait(self, retried: int) -> Wait | None: ...


@dataclass(frozen=True, slots=True)
class Levels:
    """Waits for delay level `first` plus the number of earlier retries, at most level 18."""

    first: int = _FIRST_LEVEL
    retries: int = RETRIES

    def __post_init__(self) -> None:
        _at_least("first", self.first, 0)
        _at_least("retries", self.retries, 0)

    def wait(self, retried: int) -> Wait | None:
        level = min(self.first + retried, len(LEVELS_MS))
        return Wait("level", level) if retried < self.retries else None


@dataclass(frozen=True, slots=True)
class Exponential:
    """The first wait is `first`; each further one is `factor` times as long, at most `most`. Both are timedeltas, or
    text such as "2h"."""

    first: timedelta | str = "1s"
    factor: float = 2.0
    most: timedelta | str = "2h"
    retries: int = RETRIES

    def __post_init__(self) -> None:
        _at_least("retries", self.retries, 0)
        if self.factor < 1:
            raise Rejected("bad_policy", f"factor is {self.factor:g}; it must be at least 1", "factor")
        self._bounds()

    def wait(self, retried: int) -> Wait | None:
        if retried >= self.retries:
            return None
        first, most = self._bounds()
        try:
            return Wait("after", min(int(first * self.factor**retried), most))
        except OverflowError:
            return Wait("after", most)

    def _bounds(self) -> tuple[int, int]:
        return _delay(self.first, "first"), _delay(self.most, "most")


@dataclass(frozen=True, slots=True)
class Delays:
    """These waits, one after another (timedeltas, or text such as "90s"); then the retries are used up."""

    delays: Sequence[timedelta | str]

    def __post_init__(self) -> None:
        for each in self.delays:
            _delay(each, "delays")

    def wait(self, retried: int) -> Wait | None:
        return Wait("after", _delay(self.delays[retried], "delays")) if retried < len(self.delays) else None


def decide(error: BaseException, policy: Policy, retried: int, now: int = 0) -> Wait | DeadLetter:
    """When a message comes back after its handler raised this error, or that it becomes a dead letter. `retried`: the
    number of its earlier retries. `now`: epoch ms.

    Raises the policy's errors, and Rejected `bad_policy` if the policy returns an invalid wait.
    """
    if isinstance(error, Reject):
        return DeadLetter(str(error.reason))
    request = error if isinstance(error, RetryLater) else None
    if request is not None and request.level is not None and request.level < 0:
        return DeadLetter("rejected")
    counts = request is None or request.counts
    asked = None if request is None or request.wait is None else _check(request.wait)
    if asked is not None and asked.ms(now) == 0:
        asked = None
    wait = asked if asked is not None and not counts else policy.wait(retried)
    if wait is None:
        return DeadLetter("retries") if counts else Wait("level", _FIRST_LEVEL, counts=False)
    wait = _check(wait) if asked is None else asked
    return wait if counts else replace(wait, counts=False)


def _check(wait: Wait) -> Wait:
    if not (
        isinstance(wait, Wait) and wait.kind in _HEADER
        and type(wait.value) is int and _MIN_MS[wait.kind] <= wait.value <= _MAX_MS[wait.kind]
    ):  # fmt: skip
        raise Rejected("bad_policy", f"the retry policy returns {wait!r}, which is not a valid Wait", "retry")
    return wait


def _delay(delay: timedelta | str, field: str) -> int:
    if not isinstance(delay, timedelta | str):
        raise Rejected(
            "bad_time", f"{field} is {delay!r}, which has no unit: say a timedelta, or text such as 90s", field
        )
    ms = parse_duration(delay_ms(delay) if isinstance(delay, timedelta) else delay, field)
    if ms > _MAX_MS["after"]:
        raise Rejected("delay_too_long", f"{field} is {ms} ms; the most is {_MAX_MS['after']}", field)
    return ms


def _instant(at: datetime | int | str) -> int:
    if isinstance(at, datetime):
        if is_naive(at):
            raise Rejected("naive_time", f"at has no zone: {at}; add tzinfo, such as datetime.UTC", "at")
        at = to_ms(at)
    return parse_instant(at, "at")


def _at_least(field: str, value: int, least: int) -> None:
    if value < least:
        raise Rejected("bad_policy", f"{field} is {value}; it must be at least {least}", field)
