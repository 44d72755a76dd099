"""Requests as values and answers judged: what the sync and the async client share below the operations. Pure.

A `Plan` is a generator that yields calls and is sent their responses: an operation without IO, so that one text serves
both clients (the idea is h11's). A client runs it by carrying out each call after its `pause_s`.
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
"""So often a single call is repeated."""
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 0.2, 4.0, 5.0
_GATEWAY: Final = (502, 504)
_LATER: Final = (429, 502, 503, 504)
LAST_CURSOR: Final = "x-duemq-last-cursor"
_CONDITIONS: Final = ("If-None-Match", LAST_CURSOR)
_PROBLEM: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. `hold_s` is how long the server may keep it waiting before it answers.

    `safe`: carried out twice it does no harm, as a GET does none. `whole`: the plan repeats it.
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
        headers = {name.encode(): value.encode() for name, value in self.headers.items()}  # httpx takes text for ASCII
        if self.body is not None:
            headers[b"Content-Type"] = b"application/json"
        timeout = _longer(http.timeout, self.hold_s)
        return http.build_request(
            self.method, self.path, params=self.query or None, content=self.body, headers=headers, timeout=timeout
        )


Plan = Generator[Call, httpx.Response, T]


def repeating(plan: Plan[T], retries: int) -> Plan[T]:
    """The plan, with each call repeated up to `retries` times if that does no harm.

    If nothing was carried out, any call is repeated; if the outcome is unknown, a `safe` one. Raises `UnexpectedAnswer`
    if the plan does not find in an answer what duemq says there.
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
        if unknown is not None:  # the first attempt may have changed it
            headers = {name: value for name, value in headers.items() if name not in _CONDITIONS}
        call = replace(call, headers=headers, pause_s=max(pause_s * random.uniform(0.5, 1.0), hint_s))
    if unknown is not None:
        raise unknown  # whatever was said of a repeat
    if response is None:
        raise error
    return response


def _nothing_done(error: DuemqError, response: httpx.Response | None) -> bool:
    """Whether the request was not sent, or duemq itself says that it took nothing: gateways answer 503 as well where a
    connection broke."""
    if isinstance(error, Unreachable):
        return not error.outcome_unknown
    return response is not None and response.headers.get("Content-Type", "").startswith(_PROBLEM)


def quoted(text: str) -> str:
    """An id, name or topic as one segment of a path, whatever characters it has."""
    # Two dots alone are a step up, for whoever normalises the path on its way.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def json_of(response: httpx.Response) -> Any:
    """The body of an answer that says yes. Raises the error it stands for otherwise."""
    if not response.is_success:
        raise error_of(response)
    try:
        return orjson.loads(response.content)
    except ValueError as error:
        raise _unexpected_answer(response) from error


def error_of(response: httpx.Response) -> RejectedError | Unavailable | Unreachable | UnexpectedAnswer:
    """The error that an answer of 300 or more stands for. Its body must have been read.

    A gateway says 502 or 504 also where it sent the request on and got no answer; 503, where it did not.
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
        return UnexpectedAnswer(
            f"{status}: the server is not here, but at {response.headers['Location']}: name that URL"
        )
    start = response.text[:80].replace("\n", " ")
    return UnexpectedAnswer(f"{status} is not an answer of duemq but of another service: {start!r}; check the URL")


def _longer(limits: httpx.Timeout, hold_s: float) -> httpx.Timeout:
    read = None if limits.read is None else limits.read + hold_s
    return httpx.Timeout(connect=limits.connect, read=read, write=limits.write, pool=limits.pool)
