"""A connection that publishes over RabbitMQ's stream protocol. `rstream` encodes and decodes the frames.

The client in `rstream` is not used. Its `Producer` allows only one publisher, and so only one name, per stream and
connection, and writes only twice a second. Its `Client` does not detect a silent broker, and reports no error for a
write to a lost connection.

Any error ends the connection and is reported once: with messages in flight, continuing is not safe (`numbering`).
Everything published in one turn of the event loop is sent in one write.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rstream import schema
from rstream.constants import SlasMechanism
from rstream.encoding import decode_frame, encode_frame, encode_publish

from duemq.relay.base import Reply, Result
from duemq.relay.network.resolver import Resolver
from duemq.relay.rabbitmq.stream.replies import CLOSED, OK, ConnectionLost, refused

_MAX_HEARTBEAT_S: Final = 10
_FRAME_BYTES: Final = 1 << 20  # the limit that we propose; the broker may choose a lower one
_OWN_FRAME_BYTES: Final = 64 << 10  # larger batches are split into several frames
_HEAD_BYTES: Final = 13
_MESSAGE_BYTES: Final = 12  # overhead per message in a publish frame
_CLOSE_S: Final = 1.0
_PROPERTIES: Final = {"product": "duemq", "connection_name": "duemq relay"}

OnConfirm = Callable[[int, Iterable[int]], None]
"""Called with a publisher's id and the publishing ids of stored messages."""


class Login(NamedTuple):
    """How to log in. `username`: if it is empty, the certificate identifies the user. `virtual_host`: must be ASCII."""

    virtual_host: str
    username: str
    password: str


class StreamConnection(asyncio.Protocol):
    """The connection. `on_lost`: called once, with the reason, if the connection ends after `connect` has succeeded.
    `timeout_s`: time limit for a message; if the broker is silent for half of it, or for two heartbeat intervals, the
    connection counts as lost. `on_beat`: called with half of `timeout_s`, several times within that time."""

    def __init__(
        self, on_confirm: OnConfirm, on_lost: Callable[[Reply], None], on_beat: Callable[[float], None],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._on_beat, self._timeout_s = on_beat, timeout_s
        self._loop = asyncio.get_running_loop()
        self._on_confirm, self._on_lost = on_confirm, on_lost
        self._transport: Any = None
        self._received = bytearray()
        self._questions: dict[tuple[type[schema.Frame], int], Callable[[Any], None]] = {}
        self._last_question = 0
        self._tune: asyncio.Future[schema.Tune] = self._loop.create_future()
        self._ended: asyncio.Future[Reply] = self._loop.create_future()
        self._ready = False
        self._batch: list[tuple[int, schema.Message]] = []
        self._beat: asyncio.TimerHandle | None = None
        self._heartbeat_s, self._heard_at = 0.0, 0.0
        self._frame_bytes = _FRAME_BYTES
        self.advertised: tuple[str, int] | None = None
        """The host and port that this broker advertises."""

    @property
    def usable(self) -> bool:
        return self._ready and not self._ended.done()

    @property
    def trouble(self) -> Reply:
        """Why the connection is not usable."""
        return self._ended.result() if self._ended.done() else CLOSED

    @property
    def message_bytes(self) -> int:
        """The size of the largest encoded message that the broker accepts."""
        return self._frame_bytes - _HEAD_BYTES - _MESSAGE_BYTES

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the broker has not read yet."""
        return int(self._transport.get_write_buffer_size()) if self._transport is not None else 0

    # --- connecting -----------------------------------------------------------------------------------------------

    async def connect(
        self, resolver: Resolver, place: tuple[str, int], tls: ssl.SSLContext | None, login: Login
    ) -> None:
        """Connect and log in. Raises OSError or ConnectionLost. After an error or a cancel, nothing is left open."""
        host, port = place
        try:
            connection = await resolver.connect(host, port, self._timeout_s / 3)
            await self._loop.create_connection(
                lambda: self, sock=connection, ssl=tls, server_hostname=host if tls is not None else None
            )
            await self._introduce(login)
        except BaseException:
            self.abort(CLOSED)
            raise
        self._ready = True

    async def _introduce(self, login: Login) -> None:
        ours = [schema.Property(name, text) for name, text in _PROPERTIES.items()]
        await self.ask(lambda number: schema.PeerProperties(number, ours), schema.PeerPropertiesResponse)
        await self.ask(schema.SaslHandshake, schema.SaslHandshakeResponse)
        mechanism, proof = SlasMechanism.MechanismExternal.value, b""
        if login.username:
            mechanism, proof = SlasMechanism.MechanismPlain.value, f"\0{login.username}\0{login.password}".encode()
        answer = await self.ask(
            lambda number: schema.SaslAuthenticate(number, mechanism, proof), schema.SaslAuthenticateResponse
        )
        self._check(answer, f"user {login.username!r}" if login.username else "the user of the certificate")
        tune = await self._or_lost(self._tune)
        self._frame_bytes = min(tune.frame_max or _FRAME_BYTES, _FRAME_BYTES)
        most_s = max(1, min(int(self._timeout_s / 2), _MAX_HEARTBEAT_S))
        self._heartbeat_s = float(min(tune.heartbeat or most_s, most_s))
        self._write(encode_frame(schema.Tune(self._frame_bytes, int(self._heartbeat_s))))
        opened = await self.ask(lambda number: schema.Open(number, login.virtual_host), schema.OpenResponse)
        self._check(opened, f"virtual host {login.virtual_host!r}")
        properties = {each.key: each.value for each in opened.properties}
        if "advertised_host" in properties:
            self.advertised = properties["advertised_host"], int(properties["advertised_port"])
        self._heard_at = self._loop.time()
        self._beat = self._loop.call_later(self._heartbeat_s / 2, self._heartbeat)

    async def leader(self, stream: str) -> tuple[str, int]:
        """The host and port of the broker that leads a stream. Raises ConnectionLost."""
        answer = await self.ask(lambda number: schema.Metadata(number, [stream]), schema.MetadataResponse)
        (about,) = answer.metadata
        if about.response_code != OK:
            raise ConnectionLost(refused(about.response_code, f"stream {stream}"))
        for broker in answer.brokers:
            if broker.reference == about.leader_ref:
                return broker.host, broker.port
        raise ConnectionLost(refused(6, f"stream {stream} has no leader at present"))

    async def ask(self, make: Callable[[int], schema.Frame], expected: type[schema.Frame]) -> Any:
        """Send a request and return its answer, whatever the response code is. Raises ConnectionLost."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame)

        self._request(make, expected, answered)
        return await self._or_lost(answer)

    def _request(
        self, make: Callable[[int], schema.Frame], expected: type[schema.Frame], on_answer: Callable[[Any], Any]
    ) -> None:
        self._last_question += 1
        self._questions[expected, self._last_question] = on_answer
        self._write(encode_frame(make(self._last_question)))

    async def _or_lost(self, answer: asyncio.Future[Any]) -> Any:
        await asyncio.wait([answer, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ConnectionLost(self._ended.result())

    @staticmethod
    def _check(answer: Any, detail: str) -> None:
        if answer.response_code != OK:
            raise ConnectionLost(refused(answer.response_code, detail))

    # --- publishing -----------------------------------------------------------------------------------------------

    def declare(self, publisher: int, name: str, stream: str) -> None:
        """Declare a publisher. Messages may be published with it immediately. `publisher`: 0 to 255. `name`: if it is
        empty, publishing ids serve only for confirms. If the broker refuses the publisher, the connection ends."""
        self._flush()

        def answered(frame: Any) -> None:
            if frame.response_code != OK:
                self.abort(refused(frame.response_code, f"stream {stream}"))

        self._request(
            lambda number: schema.DeclarePublisher(number, publisher, name, stream),
            schema.DeclarePublisherResponse,
            answered,
        )

    def publish(self, publisher: int, publishing_id: int, message: bytes) -> None:
        """Write a message at the end of this turn of the event loop, together with others."""
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append((publisher, schema.Message(publishing_id, None, message)))

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if not batch or self._ended.done():
            return
        most = min(_OWN_FRAME_BYTES, self.message_bytes + _MESSAGE_BYTES)
        pieces: list[bytes] = []
        run: list[schema.Message] = []
        size, of = 0, batch[0][0]
        for publisher, message in batch:
            if run and (publisher != of or size + _MESSAGE_BYTES + len(message.data) > most):
                pieces.append(encode_publish(schema.Publish(of, run)))
                run, size = [], 0
            of = publisher
            run.append(message)
            size += len(message.data) + _MESSAGE_BYTES
        pieces.append(encode_publish(schema.Publish(of, run)))
        self._write(b"".join(pieces))

    def _write(self, data: bytes) -> None:
        if not self._ended.done() and self._transport is not None:
            self._transport.write(data)

    # --- the broker -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        received = self._received
        received += data
        at = 0
        while len(received) - at >= 4 and not self._ended.done():
            end = at + 4 + int.from_bytes(received[at : at + 4], "big")
            if len(received) < end:
                break
            try:
                self._handle(decode_frame(bytes(received[at + 4 : end])))
            except ValueError as error:  # rstream does not know the frame
                self.abort(Reply(Result.AWAY, "UNKNOWN_FRAME", str(error)))
            at = end
        del received[:at]

    def _handle(self, frame: Any) -> None:
        match frame:
            case schema.PublishConfirm():
                self._on_confirm(frame.publisher_id, frame.publishing_ids)
            case schema.PublishError():
                codes = {error.response_code for error in frame.errors}
                self.abort(refused(min(codes), f"the broker refused {len(frame.errors)} messages"))
            case schema.MetadataUpdate():
                info = frame.metadata_info
                self.abort(refused(info.code, f"stream {info.stream} has another leader or no longer exists"))
            case schema.Tune():
                if not self._tune.done():
                    self._tune.set_result(frame)
            case schema.Close():
                self._write(encode_frame(schema.CloseResponse(frame.correlation_id, OK)))
                self._end(Reply(Result.AWAY, "CONNECTION_CLOSED", frame.reason))
            case schema.Heartbeat():
                pass
            case _:
                on_answer = self._questions.pop((type(frame), frame.corr_id or 0), None)
                if on_answer is not None:
                    on_answer(frame)

    def _heartbeat(self) -> None:
        silent_s = min(max(self._timeout_s / 2, self._heartbeat_s), 2 * self._heartbeat_s)
        if self._loop.time() - self._heard_at > silent_s:
            self.abort(Reply(Result.AWAY, "heartbeat", "the broker has been silent"))
            return
        self._on_beat(self._timeout_s / 2)
        self._write(encode_frame(schema.Heartbeat()))
        self._beat = self._loop.call_later(self._heartbeat_s / 2, self._heartbeat)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(Reply(Result.AWAY, "connection lost", "" if error is None else str(error)))

    # --- ending ---------------------------------------------------------------------------------------------------

    def abort(self, reply: Reply) -> None:
        """End the connection immediately, for this reason."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reply)

    async def close(self) -> None:
        """Close the connection as the protocol requires, within about a second. Idempotent."""
        try:
            if self.usable:
                self._flush()
                with suppress(TimeoutError, ConnectionLost):
                    async with asyncio.timeout(_CLOSE_S):
                        await self.ask(lambda number: schema.Close(number, OK, "closed"), schema.CloseResponse)
        finally:
            self.abort(CLOSED)

    def _end(self, reply: Reply) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._ended.done():
            return
        self._ended.set_result(reply)
        self._batch.clear()
        if self._transport is not None:
            self._transport.close()
        if self._ready:
            self._on_lost(reply)
