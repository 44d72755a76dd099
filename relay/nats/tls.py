"""TLS to a NATS server: a context that records whether TLS has begun."""

from __future__ import annotations

import ssl
from typing import Any

from duemq.model.destinations.destination import Credentials
from duemq.relay.tls import client_context


class NatsTlsContext(ssl.SSLContext):
    """A context like the result of `client_context`, with the same errors. `used`: whether TLS has begun with this
    context."""

    used: bool

    def __new__(cls, credentials: Credentials) -> NatsTlsContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, credentials: Credentials) -> None:
        self._context, self.used = client_context(credentials), False

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self.used = True
        return self._context.wrap_bio(*args, **options)
