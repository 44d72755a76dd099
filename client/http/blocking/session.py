# Made from client/http/aio/session.py by `make sdk`: change that file.
"""The base class of all clients: a connection that executes plans."""

from __future__ import annotations

import time
from collections.abc import Generator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from duemq.client.http.connection import OfProcess, http_options, stream_timeout, tls_files, unreachable
from duemq.client.http.errors import Unreachable
from duemq.client.http.exchange import RETRIES, Call, Plan, error_of, repeating
from duemq.client.http.tail import TailFollower
from duemq.client.http.values import Record

T = TypeVar("T")


class Session:
    """A connection that executes plans. For its arguments, see `Client`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        timeout: float = 10.0,
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        transport: httpx.BaseTransport | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._timeout, self._retries = timeout, retries
        self._cursors: dict[tuple[str, str], str] = {}  # committed or looked up by this client, by topic and consumer
        options = http_options(url, api_key, timeout, tls_files(ca_file, cert_file, key_file))
        self._of_process = OfProcess(lambda: httpx.Client(transport=transport, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    @property
    def _http(self) -> httpx.Client:
        return self._of_process.value

    def _run(self, plan: Plan[T]) -> T:
        plan = repeating(plan, self._retries)
        try:
            call = next(plan)
            while True:
                try:
                    response = self._carry_out(call)
                except Unreachable as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    def _stream(self, follow: TailFollower) -> Generator[Record, None, None]:
        request = follow.call().request(self._http)
        request.extensions["timeout"] = stream_timeout(self._timeout).as_dict()
        response = self._exchange(request, stream=True)
        try:
            if response.status_code != 200:
                response.read()
                raise error_of(response)
            follow.opened()
            for chunk in response.iter_bytes():
                for record in follow.feed(chunk):
                    follow.passed(record)
                    yield record
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
        finally:
            response.close()

    def _carry_out(self, call: Call) -> httpx.Response:
        if call.pause_s:
            time.sleep(call.pause_s)
        return self._exchange(call.request(self._http))

    def _exchange(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
