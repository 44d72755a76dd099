"""Live updates for the overview: server-sent events, which are built once a second for all viewers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.model.callers.access import Grant
from duemq.model.errors import Unavailable
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.caller import grant_of
from duemq.proxy.console.pages.overview import live_values
from duemq.proxy.history import Point
from duemq.proxy.response.ending import Ending

MEDIA_TYPE: Final = "text/event-stream"
MAX_STREAMS: Final = 200
_DIGITS: Final = 16  # a number with this many digits is not a time in ms
_LIFE_S: Final = 60.0  # after this time the browser must reconnect, and its key is checked


def _event(service: Service, points: list[Point], grant: Grant) -> bytes:
    shown = [] if grant.topics else [tuple(one) for one in points]
    document: dict[str, Any] = {"points": shown, **live_values(service, grant)}
    return b"id: %d\ndata: %b\n\n" % (service.history.now.at, orjson.dumps(document))


def _latest(service: Service, grant: Grant) -> bytes:
    """The event for the last sample. It is the same for all callers with all topics."""
    history = service.history
    if grant.topics:
        return _event(service, history.points[-1:], grant)
    at, event = history.event
    if history.now.at != at:
        history.event = _, event = history.now.at, _event(service, history.points[-1:], grant)
    return event


class LiveStream(Response):
    """Sends events until the client disconnects, the server closes, or a minute has passed."""

    media_type = MEDIA_TYPE

    def __init__(self, service: Service, after: int, grant: Grant) -> None:
        """`after`: the time of the latest event that the client has, epoch ms."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._service, self._after, self._grant = service, after, grant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        history = self._service.history
        history.streams += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with self._service.endings.watch(scope, receive) as end:
                await self._stream(end, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            history.streams -= 1

    async def _stream(self, end: Ending, send: Send) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _LIFE_S
        service = self._service
        await service.fresh_letters.refresh()
        points = [one for one in service.history.points if one.at > self._after]
        event = b"retry: 2000\n" + _event(service, points, self._grant)
        while not end.reached and loop.time() < until:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            sampled = asyncio.create_task(service.history.wait(), name="sample")
            try:
                await end.or_done(sampled)
            finally:
                sampled.cancel()
            await service.fresh_letters.refresh()
            event = _latest(service, self._grant)


async def get_live(service: Service, request: Request) -> Response:
    streams = service.history.streams
    if streams >= MAX_STREAMS:
        raise Unavailable(f"{streams} consoles are open here, the limit: reload this page for new values")
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isdecimal() and len(last) < _DIGITS else 0
    return LiveStream(service, after, grant_of(request))
