"""The headers of a message as one text, for systems whose own headers cannot represent them."""

from __future__ import annotations

import json
from base64 import b64encode

from duemq.client.consumer.retry.headers import Headers


def headers_json(headers: Headers) -> str:
    """All headers of a message in order, as ASCII JSON: `[name, text]`, `[name, base64, "base64"]` if the value is not
    UTF-8, or `[name, null]`."""
    pairs: list[list[str | None]] = []
    for name, data in headers:
        try:
            pairs.append([name, None if data is None else data.decode()])
        except UnicodeDecodeError:
            pairs.append([name, b64encode(data or b"").decode(), "base64"])
    return json.dumps(pairs, separators=(",", ":"))
