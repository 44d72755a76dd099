"""How driver and executors connect to the server, ask for its limits, and repeat requests. Does not use Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, cast

from duemq.client import Admin, Client
from duemq.client.http.connection import http_options, tls_files
from duemq.client.http.errors import BatchInterrupted, RejectedError, Unavailable, Unreachable
from duemq.client.http.values import Limits
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.storage.limits import ImportLimits
from duemq.tls.files import TlsFiles

PATIENCE_S: Final = 120.0  # how long a request is repeated if the server does not answer
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0

T = TypeVar("T")
R = TypeVar("R")
Outcome = TypeVar("Outcome")
Clock = Callable[[], float]
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Server:
    """The address of duemq; None: the default of `Admin`. `timeout_s`: per request. `tls`: files on every machine."""

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    tls: TlsFiles = field(default_factory=TlsFiles)

    @classmethod
    def at(cls, url: str | None, api_key: str | None = None, timeout_s: float = 60.0, **more: Any) -> Self:
        """The server, with `more` fields. Missing values come from the environment of this process, because the
        environment of an executor may differ. Raises BadInput."""
        try:
            base: str = http_options(url, None, 1.0)["base_url"]
        except ValueError as error:
            raise BadInput(f"option url: {error}") from error
        return cls(base, api_key or os.environ.get("DUEMQ_API_KEY"), timeout_s, tls_files(), **more)

    def client(self) -> Admin:
        tls = self.tls
        return Admin(
            self.url, self.api_key, self.timeout_s, ca_file=tls.ca, cert_file=tls.cert, key_file=tls.key, retries=0
        )

    def limits(self, patience_s: float = PATIENCE_S) -> Limits:
        """See `limits_of`. The request is repeated for `patience_s` while the server is unavailable."""
        with self.client() as client:
            return patiently(lambda: limits_of(client), patience_s)


def limits_of(client: Client) -> Limits:
    """The server's limits, which are used to check messages before they are sent.

    Raises the client's errors, and JobFailed if the server is too old to return limits.
    """
    try:
        return client.limits()
    except RejectedError as error:
        if error.code != "not_found":
            raise
        raise JobFailed("the server has no GET /v1/limits: it is older than this release") from error


def message_limits(limits: Limits) -> ImportLimits:
    """The limits for one message, in the form that the rules for files use."""
    return ImportLimits(
        limits.max_payload_bytes, limits.max_headers, limits.max_headers_bytes, limits.max_key_bytes, limits.topics
    )


def patiently(
    call: Callable[[], T],
    patience_s: float = PATIENCE_S,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> T:
    """Repeat a call while the server is away. Raises `Unavailable` and `Unreachable` after `patience_s` seconds."""
    pause_s, deadline = 0.0, clock() + patience_s
    while True:
        try:
            return call()
        except (Unavailable, Unreachable) as error:
            if clock() >= deadline:
                raise
            pause_s = longer(pause_s)
            sleep(max(pause_s, getattr(error, "retry_after_s", 0)))


def until_answered(
    items: Sequence[T],
    ask: Callable[[Sequence[T]], Sequence[R]],
    outcome_of: Callable[[R], tuple[Outcome, bool]],
    patience_s: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> list[Outcome]:
    """The outcome of each item, in order. `outcome_of` returns the outcome in a result, and whether it is final.
    Requests for items without a final outcome are repeated until no new outcome arrives for `patience_s` seconds.

    Raises `Unavailable` and `Unreachable` if the last request had no results, and the errors that refuse a whole
    request.
    """
    outcomes: dict[int, Outcome] = {}
    left, pause_s, deadline = list(range(len(items))), 0.0, clock() + patience_s
    while left:
        error: Unavailable | Unreachable | None = None
        results: Sequence[R] = ()
        try:
            results = ask([items[place] for place in left])
        except BatchInterrupted as interrupted:
            if not isinstance(interrupted.__cause__, Unavailable | Unreachable):
                raise
            results, error = cast(Sequence[R], interrupted.results), interrupted.__cause__
        except (Unavailable, Unreachable) as refusal:
            error = refusal
        final: set[int] = set()
        for place, result in zip(left, results, strict=False):
            outcomes[place], is_final = outcome_of(result)
            if is_final:
                final.add(place)
        if final:
            pause_s, deadline = 0.0, clock() + patience_s
        elif clock() >= deadline:
            if error is not None:
                raise error
            break
        left = [place for place in left if place not in final]
        if left:
            pause_s = longer(pause_s)
            sleep(max(pause_s, *(getattr(one, "retry_after_s", 0) for one in (error, *results))))
    return [outcomes[place] for place in range(len(items))]


def longer(pause_s: float) -> float:
    """The next pause between two tries, in s."""
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
