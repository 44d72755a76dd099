"""Requests as values, and the interpretation of answers: shared by the sync and the async client. Pure.

A `Plan` is an operation without IO: a generator that yields calls, and to which the client sends the responses. So both
clients share one implementation (as with h11). The client makes each call after its `pause_s`.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import orjson

from duemq.client.http.errors import (
    RateLimited,
    RejectedError,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    from_problem,
)
from duemq.model.errors import DuemqError

T = TypeVar("T")
RETRIES: Final = 2
"""How often a single call is repeated by default."""
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 0.2, 4.0, 5.0
_GATEWAY: Final = (502, 504)
_LATER: Final = (429, 502, 503, 504)
LAST_CURSOR: Final = "x-duemq-last-cursor"
_CONDITIONS: Final = ("If-None-Match", LAST_CURSOR)
_PROBLEM: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. `hold_s`: how much longer than usual the server may take to answer.

    `safe`: repeating the call is harmless, as for a GET. `whole`: the plan repeats the call, so `repeating` must not.
    """

    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    hold_s: float = 0.0
    safe: bool = False
    whole: bool = False

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        headers = {name.encode(): value.encode() for name, value in self.headers.items()}  # httpx encodes text as ASCII
        if self.body is not None:
            headers[b"Content-Type"] = b"application/json"
        timeout = _longer(http.timeout, self.hold_s)
        return http.build_request(
            self.method, self.path, params=self.query or None, content=self.body, headers=headers, timeout=timeout
        )


Plan = Generator[Call, httpx.Response, T]


def repeating(plan: Plan[T], retries: int) -> Plan[T]:
    """The plan, with each call repeated up to `retries` times if that is harmless.

    A call that was not executed may always be repeated; one with an unknown outcome only if it is `safe`. Raises
    `UnexpectedAnswer` if an answer lacks fields that the plan expects.
    """
    try:
        call = next(plan)
        while True:
            try:
                response = yield from _repeated(call, retries)
            except Unreachable as error:
                call = plan.throw(error)
            else:
                try:
                    call = plan.send(response)
                except (LookupError, TypeError, AttributeError) as error:
                    raise _unexpected_answer(response) from error
    except StopIteration as end:
        result: T = end.value
        return result


def _repeated(call: Call, retries: int) -> Plan[httpx.Response]:
    unknown: Unreachable | None = None
    for pause_s in (_FIRST_PAUSE_S * _PAUSE_GROWTH**n for n in range(retries + 1)):
        response: httpx.Response | None = None
        try:
            response = yield call
        except Unreachable as failed:
            error: DuemqError = failed
        else:
            if response.status_code not in _LATER:
                return response
            error = error_of(response)
        if isinstance(error, Unreachable) and error.outcome_unknown:
            unknown = unknown or error
        hint_s = error.retry_after_s if isinstance(error, Unavailable) else 0
        safe = call.safe or call.method == "GET"
        if call.whole or hint_s > _LONGEST_PAUSE_S or not (safe or _nothing_done(error, response)):
            break
        headers = call.headers
        if unknown is not None:  # the first attempt may have had an effect
            headers = {name: value for name, value in headers.items() if name not in _CONDITIONS}
        call = replace(call, headers=headers, pause_s=max(pause_s * random.uniform(0.5, 1.0), hint_s))
    if unknown is not None:
        raise unknown  # the answer to a repeat does not reveal the outcome of the first attempt
    if response is None:
        raise error
    return response


def _nothing_done(error: DuemqError, response: httpx.Response | None) -> bool:
    """Whether the request was not sent, or duemq itself answered that it was not accepted. A 503 from a gateway does
    not count: gateways also answer 503 if the connection to the server breaks."""
    if isinstance(error, Unreachable):
        return not error.outcome_unknown
    return response is not None and response.headers.get("Content-Type", "").startswith(_PROBLEM)


def quoted(text: str) -> str:
    """An id, name or topic as one path segment, whatever characters it contains."""
    # Proxies that normalise paths treat the segments `.` and `..` as navigation.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def json_of(response: httpx.Response) -> Any:
    """The body of a successful answer. For any other answer, raises its exception (`error_of`)."""
    if not response.is_success:
        raise error_of(response)
    try:
        return orjson.loads(response.content)
    except ValueError as error:
        raise _unexpected_answer(response) from error


def error_of(response: httpx.Response) -> RejectedError | Unavailable | Unreachable | UnexpectedAnswer:
    """The exception for an answer with a status of 300 or above. The body must have been read.

    With 502 or 504 from a gateway, the outcome is unknown: it may have forwarded the request and got no answer. A 503
    becomes `Unavailable`; see `_nothing_done` for a 503 from a gateway.
    """
    request_id = response.headers.get("X-Request-ID")
    retry_after = response.headers.get("Retry-After", "")
    retry_after_s = int(retry_after) if retry_after.isdecimal() else 1
    try:
        error = from_problem(orjson.loads(response.content), request_id, retry_after_s)
    except (ValueError, KeyError, TypeError):
        if response.status_code in _GATEWAY:
            detail = f"HTTP {response.status_code} from a gateway before the server; the outcome is not known"
            return Unreachable(detail, outcome_unknown=True)
        if response.status_code in (429, 503):
            kind = RateLimited if response.status_code == 429 else Unavailable
            return kind(f"HTTP {response.status_code} from the server", retry_after_s, request_id=request_id)
        return _unexpected_answer(response)
    if isinstance(error, RejectedError) and response.status_code == 500:
        return UnexpectedAnswer(f"HTTP 500: {error.detail}")
    if isinstance(error, RejectedError) and response.status_code in _GATEWAY:
        return Unreachable(f"HTTP {response.status_code}: {error.detail}", outcome_unknown=True)
    return error


def _unexpected_answer(response: httpx.Response) -> UnexpectedAnswer:
    status = f"HTTP {response.status_code}"
    if response.has_redirect_location:
        return UnexpectedAnswer(f"{status}: the server is at {response.headers['Location']}: use that URL")
    start = response.text[:80].replace("\n", " ")
    return UnexpectedAnswer(f"{status} is not an answer of duemq but of another service: {start!r}; check the URL")


def _longer(limits: httpx.Timeout, hold_s: float) -> httpx.Timeout:
    read = None if limits.read is None else limits.read + hold_s
    return httpx.Timeout(connect=limits.connect, read=read, write=limits.write, pool=limits.pool)
