"""TLS of a NATS server: a context that tells whether TLS has begun with it."""

from __future__ import annotations

import ssl
from typing import Any

from duemq.model.destinations.destination import Credentials
from duemq.relay.tls import client_context


class ClientContext(ssl.SSLContext):
    """As `client_context` makes it, and raises. `used`: whether TLS has begun with it."""

    used: bool

    def __new__(cls, credentials: Credentials) -> ClientContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, credentials: Credentials) -> None:
        self._context, self.used = client_context(credentials), False

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self.used = True
        return self._context.wrap_bio(*args, **options)
