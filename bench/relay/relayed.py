"""Destinations on the measured server, and their counters."""

import math
import re
from collections import Counter
from typing import Any

import httpx
import orjson

from duemq.bench.relay.receivers import Receiver, credentials, place
from duemq.bench.system.system import SiteError, get

_LATENESS = re.compile(
    r'^duemq_relay_lateness_seconds_bucket\{destination="([^"]*)",le="([^"]*)"\} (\S+)$', re.MULTILINE
)

Buckets = Counter[float]
"""Upper bound of the lateness in ms -> number of messages at or below the bound."""


class RelayedDestination:
    """One destination. `url`: the server's URL."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self.name = url, name

    def declare(self, receiver: Receiver, topics: list[str]) -> None:
        """Declare the destination on the server. Raises SiteError."""
        fields: dict[str, Any] = {
            "name": self.name, "url": place(receiver.url), "topics": topics, "options": receiver.options(),
        }  # fmt: skip
        if secrets := credentials(receiver.url):
            fields["credentials"] = secrets
        self._post("/v1/destinations", fields)

    def pause(self) -> None:
        self._post(f"/v1/destinations/{self.name}:pause")

    def resume(self) -> None:
        self._post(f"/v1/destinations/{self.name}:resume")

    def _post(self, path: str, fields: dict[str, Any] | None = None) -> None:
        answer = httpx.post(f"{self._url}{path}", json=fields, timeout=30)
        if answer.status_code >= 300:
            raise SiteError(f"{path}: {answer.text}")

    def figures(self) -> dict[str, Any]:
        """The destination's figures; empty if no relay serves it now."""
        status, body = get(self._url, f"/v1/destinations/{self.name}")
        figures: dict[str, Any] = (orjson.loads(body).get("figures") if status == 200 else None) or {}
        return figures

    def lateness(self) -> Buckets:
        """The lateness of all messages that were accepted so far."""
        metrics = get(self._url, "/metrics")[1].decode()
        rows = (match for match in _LATENESS.findall(metrics) if match[0] == self.name)
        return Counter({math.inf if bound == "+Inf" else float(bound) * 1000: int(float(n)) for _, bound, n in rows})


def quantile(before: Buckets, after: Buckets, share: float) -> float:
    """The upper bound, ms, of the bucket that contains the quantile, for messages accepted between the two readings;
    NaN if there were none."""
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    total = counts.get(math.inf, 0)
    return next((bound for bound, count in counts.items() if total and count >= share * total), math.nan)
