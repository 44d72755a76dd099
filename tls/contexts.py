"""`ssl` contexts that reload their files when these change: certbot and cert-manager replace files while we run."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import Any, Literal

from duemq.model.errors import BadConfig
from duemq.tls.files import TlsFiles, strict

log = logging.getLogger(__name__)

ClientAuth = Literal["none", "optional", "required"]

_LOOK_S = 1.0  # between checks: thousands of connections may ask, and three `stat` calls a second cost nothing
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class FileContext(ssl.SSLContext):
    """A context that uses the newest valid version of its files. Threads may share it.

    Existing connections keep their context. If a new file is unusable, this is logged, and the old files stay in use.
    `current` is the context in use. Raises BadConfig if the first files are unusable.
    """

    current: ssl.SSLContext

    def __new__(cls, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> FileContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        self._files, self._make = files, make
        self._state, self._looked_at, self._complaint = files.state(), time.monotonic(), ""
        self.current = make()

    def refresh(self, *, force: bool = False) -> bool:
        """Read the files if they have changed, or in any case with `force`. Return True if files were read and are now
        in use. Never raises."""
        state = self._files.state()
        if state == self._state and not force:
            self._complaint = ""
            return False
        try:
            self.current = self._make()
        except BadConfig as error:
            if str(error) != self._complaint or force:
                log.error(
                    "TLS keeps its current files, the new ones cannot be used: %s", error, extra={"action": "tls"}
                )
            self._complaint = str(error)
            return False
        self._state, self._complaint = state, ""
        log.info(
            "TLS files were read again: %s", ", ".join(path for _, path in self._files.named()), extra={"action": "tls"}
        )
        return True

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._newest().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._newest().wrap_socket(*args, **options)

    def _newest(self) -> ssl.SSLContext:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self.refresh()
        return self.current


def server_context(files: TlsFiles, client_auth: ClientAuth = "none") -> FileContext:
    """A context for a server with a certificate. `files.ca`: the authority for clients' certificates. Raises
    BadConfig."""
    return FileContext(files, lambda: _server(files, client_auth))


def client_context(files: TlsFiles) -> FileContext:
    """A context for a client, which checks the server's name against the server's certificate.

    If `files.ca` is empty, the system's authorities are trusted. Raises BadConfig.
    """
    return FileContext(files, lambda: _client(files))


def node_context(files: TlsFiles, client_auth: ClientAuth, host: str) -> FileContext:
    """A context for a node with the address `host`. Nodes must accept one another's certificates. Raises BadConfig."""

    def make() -> ssl.SSLContext:
        context = _server(files, client_auth)
        _check_chain(context, _client(files), files, host)
        return context

    return FileContext(files, make)


def _server(files: TlsFiles, client_auth: ClientAuth) -> ssl.SSLContext:
    if client_auth != "none" and not files.ca:
        raise BadConfig(f"{files.ca_setting} is not set: certificates of clients are checked against it")
    context = strict(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = _VERIFY[client_auth]
    files.load_into(context)
    return context


def _client(files: TlsFiles) -> ssl.SSLContext:
    context = strict(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    files.load_into(context)
    if not files.ca:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _check_chain(server: ssl.SSLContext, client: ssl.SSLContext, files: TlsFiles, host: str) -> None:
    """Make a handshake with ourselves, as others will do with us. Raises BadConfig. An expired certificate only causes
    a warning."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    try:
        while waiting:
            for end in tuple(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            log.warning("%s: %s: %s", files.cert_setting, files.cert, error.verify_message, extra={"action": "tls"})
            return
        raise BadConfig(
            f"{files.cert_setting}: proxies and nodes that trust {files.ca_setting} would refuse {files.cert} for "
            f"{host}: {error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise BadConfig(f"{files.cert_setting}: {files.cert} cannot be used: {error.reason or error}") from error
