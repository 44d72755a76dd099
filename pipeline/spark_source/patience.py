"""Sending messages until each has an answer. No Spark in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duemq.client import Draft, Message
from duemq.client.http.blocking.message import BatchResult
from duemq.client.http.errors import BatchInterrupted, RejectedError, Unavailable, Unreachable
from duemq.pipeline.logs.server import Clock, Sleep, longer

ACCEPTED, REPEATED, REFUSED = "accepted", "repeated", "refused"


class PostResult(NamedTuple):
    """The outcome of a message: accepted, repeated (it was there already), or refused with the reason."""

    status: str
    detail: str | None = None


def posted(
    drafts: Sequence[Draft],
    send: Callable[[Sequence[Draft]], Sequence[BatchResult]],
    patience_s: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> list[PostResult]:
    """An answer for each draft, in order. All have names, so what is not known is sent again.

    Raises `Unavailable` and `Unreachable` once nothing was answered for `patience_s` seconds, and what refuses a whole
    request.
    """
    answers: dict[int, PostResult] = {}
    left: Sequence[int] = range(len(drafts))
    pause_s, deadline = 0.0, clock() + patience_s
    while left:
        why: Exception | None = None
        results: Sequence[BatchResult] = ()
        try:
            results = send([drafts[place] for place in left])
        except BatchInterrupted as error:
            if not isinstance(error.__cause__, Unavailable | Unreachable):
                raise
            results, why = error.results, error.__cause__
        except (Unavailable, Unreachable) as error:
            why = error
        for place, result in zip(left, results, strict=False):
            if isinstance(result, Message):
                answers[place] = PostResult(REPEATED if result.state.duplicate else ACCEPTED)
            elif isinstance(result, RejectedError):
                answers[place] = PostResult(REFUSED, str(result))
            else:
                why = result
        again = [place for place in left if place not in answers]
        if len(again) < len(left):
            pause_s, deadline = 0.0, clock() + patience_s
        elif why is not None and clock() >= deadline:
            raise why
        left = again
        if left:
            pause_s = longer(pause_s)
            sleep(max(pause_s, getattr(why, "retry_after_s", 0)))
    return [answers[place] for place in range(len(drafts))]
