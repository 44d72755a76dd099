"""The server that driver and executors ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from duemq.client import Client


@dataclass(frozen=True, slots=True)
class Server:
    """Where duemq is; None: as `Client` finds it. `timeout_s`: of one request."""

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0

    def client(self) -> Client:
        return Client(self.url, self.api_key, self.timeout_s)
