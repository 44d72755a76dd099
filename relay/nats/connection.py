"""One connection to a NATS server. A lost connection is never reused: the outlet opens a new one.

For messages, it uses only public features of nats-py: `publish`, and a subscription to a private inbox. The last token
in an answer's subject identifies the message. A message needs a future, but no task and no timer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import ParseResult, urlsplit

from nats import errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from duemq.model.destinations.destination import Credentials
from duemq.model.destinations.nats import read_user_key
from duemq.relay.base import Reply, resolve
from duemq.relay.nats.replies import ACCEPTED, acknowledged, away
from duemq.relay.nats.tls import NatsTlsContext
from duemq.relay.network.resolver import Resolver

_PORT: Final = 4222
_CLOSE_S: Final = 3.0
_LOOK_S: Final = 0.001
_WATCH_S: Final = 0.2


class _Waiting(NamedTuple):
    subject: str
    reply: asyncio.Future[Reply]


class _Transport(TcpTransport):
    """Connects to an address that the resolver checked."""

    def __init__(self, resolver: Resolver) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._resolver = resolver

    def __bool__(self) -> bool:
        """Always true: nats-py would replace a falsy transport, and `TcpTransport` is falsy until it connects."""
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        connection = await self._resolver.connect(uri.hostname or "", uri.port or _PORT, connect_timeout)
        reader, writer = await asyncio.open_connection(sock=connection, limit=buffer_size)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer


class _Client(Client):
    """A client that closes immediately. nats-py would first write pending data. On a connection that was reset, that
    fails and leaks its tasks; while the server reads nothing, it waits until TCP times out."""

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._pending, self._pending_data_size = [], 0  # senders of pending messages get the connection loss as reply
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)


class NatsConnection:
    """A connection. `timeout_s`: time limit for connecting, and for the answer to a ping. `lost`: why the connection is
    no longer usable."""

    def __init__(self, resolver: Resolver, timeout_s: float) -> None:
        self.lost: Reply | None = None
        self.client = _Client()
        self.client._transport = _Transport(resolver)  # otherwise the client creates its own transport
        self._opened = False
        self._timeout_s = timeout_s
        self._error: Exception | None = None
        self._inbox = ""
        self._count = 0
        self.waiting: dict[str, _Waiting] = {}
        self._unflushed: list[asyncio.Future[Reply]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self, url: str, host: str, credentials: Credentials) -> Reply | None:
        """Connect. If that fails, returns the reason; then call `close`. `host`: the name that the server's certificate
        must have."""
        try:
            await self._connect(url, host, credentials)
        except errors.NoServersError as error:
            return away(self._error or error)
        except Exception as error:
            return self.lost or away(error)
        return self.lost

    async def _connect(self, url: str, host: str, credentials: Credentials) -> None:
        secure = urlsplit(url).scheme == "tls"
        context = NatsTlsContext(credentials) if secure or credentials.ca or credentials.cert else None

        def check_tls() -> None:
            if secure and context is not None and not context.used:  # nats-py uses TLS only if the server asks for it
                raise errors.SecureConnWantedError

        def secret(value: str) -> str:
            check_tls()  # so that no secret is sent to an unverified server
            return value

        password, token = credentials.password.get_secret_value(), credentials.token.get_secret_value()
        user_key = _user_key(credentials)
        self._opened = True
        await self.client.connect(
            [url], name="duemq relay", allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0,
            connect_timeout=self._timeout_s, ping_interval=self._timeout_s,  # type: ignore[arg-type]  # floats do
            max_outstanding_pings=2,
            pending_size=0,  # `publish` never waits, and buffers nothing while there is no connection
            error_cb=self._on_error, closed_cb=self._on_closed, tls=context,
            user=credentials.username or None, password=partial(secret, password),
            token=partial(secret, token) if token or user_key else None,  # with an nkey, too, so that TLS is checked
            tls_hostname=host, **user_key,
        )  # fmt: skip
        check_tls()
        if not self.client.is_connected:  # nats-py treats an end of file during the handshake as success
            raise ConnectionError("the server closed the connection at once")
        inbox = self.client.new_inbox()
        self._inbox = f"{inbox}."
        await self.client.subscribe(f"{inbox}.*", cb=self._on_answer)
        await self._ping()  # afterwards, an error for the subscription has arrived

    @property
    def usable(self) -> bool:
        return self.lost is None

    @property
    def servers(self) -> list[str]:
        """URLs of the cluster's other servers, as announced by this server."""
        return [server.geturl() for server in self.client.discovered_servers]

    @property
    def max_bytes(self) -> int:
        """Size limit for payload plus headers, as announced by the server."""
        return self.client.max_payload

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str], *, jetstream: bool) -> Reply:
        """Publish a message. With `jetstream`, returns the stream's answer; otherwise returns once the server has read
        the message."""
        self._count += 1
        token = str(self._count)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        self.waiting[token] = _Waiting(subject, reply)
        if self._timer is None:
            self._timer = loop.call_later(_WATCH_S, self._watch)
        try:
            if jetstream:
                await self.client.publish(subject, payload, self._inbox + token, headers)
            else:
                await self.client.publish(subject, payload, "", headers)
                self._unflushed.append(reply)
                if self._flushing is None:
                    self._flushing = asyncio.create_task(self._flush(), name="flush to NATS")
            return await reply
        except (errors.ConnectionClosedError, errors.OutboundBufferLimitError) as error:
            return self.lost or away(self._error or error, "connection_lost")
        finally:
            self.waiting.pop(token, None)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._lose(away(None, "closed"))
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if not self._opened:  # nats-py cannot close a client that never tried to connect
            return
        with suppress(TimeoutError, OSError, errors.Error):
            async with asyncio.timeout(_CLOSE_S):
                await self.client.close()

    def _watch(self) -> None:
        """Check the connection while messages wait: nats-py does not always call `closed_cb`."""
        self._timer = None
        if not self.client.is_connected:
            self._lose(away(self.client.last_error or self._error, "connection_lost"))
        elif self.waiting:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    async def _flush(self) -> None:
        """Answer waiting messages until there are none. One ping covers everything published before it."""
        try:
            while self._unflushed:
                batch, self._unflushed = self._unflushed, []
                await self._ping()
                for reply in batch:
                    resolve(reply, ACCEPTED)
        except Exception as error:
            self._lose(away(error, "connection_lost"))
        finally:
            self._flushing = None

    async def _ping(self) -> None:
        """Return once the server has read everything published before. Raises TimeoutError and errors.Error."""
        # nats-py writes a ping at once, but publications later. So wait until they are written, that is, until fewer
        # bytes are pending than before. Its `flush` returns without an answer if the connection's reader task has
        # ended; `rtt` does not.
        left = self.client.pending_data_size
        while left and self.client.is_connected:  # polled, because nats-py has no event for it
            await asyncio.sleep(_LOOK_S)
            before, left = left, self.client.pending_data_size
            if left < before:
                break
        await self.client.rtt(self._timeout_s)  # type: ignore[arg-type]

    async def _on_answer(self, message: Msg) -> None:
        waiting = self.waiting.get(message.subject[len(self._inbox) :])
        if waiting is not None:
            resolve(waiting.reply, acknowledged(message.data, message.headers))

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        text = str(error)
        _, refused, subject = text.partition("permissions violation for publish to ")
        if refused:  # the server dropped the message without an answer; nats-py converts the error to lower case
            subject = subject[1:-1]  # without the quotes
            for waiting in self.waiting.values():
                if waiting.subject.lower() == subject:
                    resolve(waiting.reply, away(error))
        elif "permissions violation" in text:
            self._lose(away(error))  # the user may not read the inbox, so no answer would ever arrive

    async def _on_closed(self) -> None:
        self._lose(away(self.client.last_error or self._error, "connection_lost"))

    def _lose(self, reply: Reply) -> None:
        if self.lost is not None:
            return
        self.lost = reply
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self.waiting.values():
            resolve(waiting.reply, reply)
        if self._flushing is not None and self._flushing is not asyncio.current_task():
            self._flushing.cancel()


def _user_key(credentials: Credentials) -> dict[str, Any]:
    """The client options that authenticate with an nkey."""
    if not credentials.creds:
        return {}
    seed, jwt = read_user_key(credentials.creds.get_secret_value())
    if not jwt:
        return {"nkeys_seed_str": seed}
    # nats-py's parser requires the lines with dashes: without them, it loops forever.
    text = f"-----BEGIN NATS USER JWT-----\n{jwt}\n-----BEGIN USER NKEY SEED-----\n{seed}\n"
    return {"user_credentials": RawCredentials(text)}
