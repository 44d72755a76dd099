"""TLS for a connection of a server, between the socket's transport and the protocol above it.

The protocol gets this transport as soon as the connection exists. So the time limit for a first request includes the
handshake, and a connection without a handshake is counted like any other. The unsent bytes are those of the socket, one
half of the connection can be closed, and closing sends an alert to the other side, as RFC 8446 (6.1) requires.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_CHUNK: Final = 64 << 10  # the most decrypted bytes to pass to the protocol at a time
_HANDSHAKE: Final = 0x16  # the first byte of each TLS connection
_LINGER_S = 1.0


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A transport for its protocol, and a protocol for the socket's transport.

    `on_failure` is called with the reason why a handshake failed. `plain_answer` returns the response to a client that
    uses HTTP without TLS.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        on_failure: Callable[[str], None] = lambda reason: None,
        plain_answer: Callable[[], bytes] = lambda: b"",
    ) -> None:
        super().__init__()
        self._protocol, self._context = protocol, context
        self._on_failure, self._plain_answer = on_failure, plain_answer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport = None  # type: ignore[assignment]  # until there is a connection
        self._begun = False  # whether the other side has sent data
        self._ready = False  # whether the handshake is done
        self._paused = False  # whether the protocol has paused reading
        self._ended = False  # whether we have closed our half
        self._lost = False
        self._eof = False  # whether the other side has closed its half
        self._eof_told = False

    # --- events of the socket's transport -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._raw = transport
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._ended or self._lost:
            return
        if not self._begun:
            self._begun = True
            if data[0] != _HANDSHAKE and data[:1].isupper():
                self._answer_plainly()
                return
        self._incoming.write(data)
        self._advance()

    def eof_received(self) -> bool:
        self._eof = True
        if not self._ready:
            return False
        self._advance()
        return True  # the protocol closes the connection

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        del self._tls, self._incoming, self._outgoing  # tens of KiB, which a reference cycle would keep for a long time
        self._protocol.connection_lost(exc)

    # --- calls of the protocol ------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ended or self._lost or not self._ready or self._raw.is_closing():
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self._raw.abort()
            return
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close our half. Later data from the other side is discarded."""
        self._end()
        self._raw.write_eof()

    def close(self) -> None:
        if not self._raw.is_closing():
            self._end()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        asyncio.get_running_loop().call_soon(self._advance)  # decrypted data comes before new data
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == "ssl_object":
            return default if self._lost else self._tls
        if name == "peercert":
            return self._tls.getpeercert() if self._ready and not self._lost else default
        return self._raw.get_extra_info(name, default)

    # --- the engine -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do the handshake, then pass decrypted data to the protocol."""
        if self._lost or self._ended:
            return
        try:
            if not self._ready:
                self._tls.do_handshake()
                self._ready = True
            while not self._paused and not self._lost and not self._ended:
                if not (data := self._tls.read(_CHUNK)):
                    self._eof = True
                    break
                self._protocol.data_received(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
            return
        if self._lost:
            return
        self._flush()
        if self._eof and not self._paused and not self._eof_told and not self._ended:
            self._eof_told = True
            if not self._protocol.eof_received():
                self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _end(self) -> None:
        """Announce the end of our data to the other side, if the handshake is done."""
        if self._ended or self._lost:
            return
        self._ended = True
        if self._ready:
            with suppress(ssl.SSLError):  # raised because the other side has not closed its half yet
                self._tls.unwrap()
        self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        """Send the other side an alert with the reason, and close the connection."""
        if not self._ready:
            self._on_failure(
                getattr(error, "verify_message", None) or (error.reason or "unknown").lower().replace("_", " ")
            )
        self._flush()
        self._leave()

    def _answer_plainly(self) -> None:
        self._on_failure("http request")
        self._raw.write(self._plain_answer())
        self._leave()

    def _leave(self) -> None:
        """Close after a pause: a reset while the other side is still sending would hide the reason from it."""
        self._ended = True
        self._raw.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, self._raw.abort)
