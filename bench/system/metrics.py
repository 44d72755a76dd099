"""Reads numbers from a site's `/metrics`."""

import re

from duemq.bench.system.system import get


def gauge(url: str, name: str) -> float | None:
    """The sum of a metric over all labels; None if there is no such metric."""
    status, body = get(url, "/metrics")
    if status != 200:
        return None
    pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$"
    values = [float(value) for value in re.findall(pattern, body.decode(), re.MULTILINE)]
    return sum(values) if values else None
