"""Sends messages until each has an answer. Uses no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duemq.client import Draft, Message
from duemq.client.http.blocking.message import BatchResult
from duemq.client.http.errors import RejectedError
from duemq.pipeline.logs.server import Clock, Sleep, until_answered

ACCEPTED, REPEATED, REFUSED = "accepted", "repeated", "refused"


class PostResult(NamedTuple):
    """The outcome of a message: accepted, repeated (accepted before), or refused with the reason."""

    status: str
    detail: str | None = None


def posted(
    drafts: Sequence[Draft],
    send: Callable[[Sequence[Draft]], Sequence[BatchResult]],
    patience_s: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> list[PostResult]:
    """An answer for each draft, in order. All drafts have names, so those without an answer are sent again.

    Raises `Unavailable` and `Unreachable` after `patience_s` seconds without an answer, and errors that refuse a whole
    request.
    """
    answers: list[PostResult] = []
    for result in until_answered(drafts, send, _outcome_of, patience_s, clock, sleep):
        if isinstance(result, Exception):
            raise result
        answers.append(result)
    return answers


def _outcome_of(result: BatchResult) -> tuple[PostResult | Exception, bool]:
    if isinstance(result, Message):
        return PostResult(REPEATED if result.state.duplicate else ACCEPTED), True
    return (PostResult(REFUSED, str(result)), True) if isinstance(result, RejectedError) else (result, False)
