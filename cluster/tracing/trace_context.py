"""The trace context that senders put into the headers of messages (W3C Trace Context). Nothing here changes it.

A message is traced where the last bit of its `traceparent` says that its sender sampled it.
"""

from __future__ import annotations

import re

from duemq.model.record import HEAD, unpack_headers

_NAME = b"traceparent"
_SAMPLED = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
_SYSTEM_HEADERS = 3  # of each delivery

Carrier = dict[str, str]
"""`traceparent` and `tracestate`, as far as they are there."""


def sampled_in(packed: bytes, start: int, count: int, header_bytes: int) -> Carrier | None:
    """The context in packed headers, if it is sampled. `start`: where the headers begin; `header_bytes`: their size."""
    at = packed.find(_NAME, start, start + header_bytes)
    if at < 0:
        return None
    value = at + len(_NAME)
    if _SAMPLED.match(packed, value) is None:
        return None
    carrier: Carrier = {}
    for name, content in unpack_headers(packed, start, count):
        if name in ("traceparent", "tracestate"):
            carrier.setdefault(name, content.decode("latin-1"))
    return carrier if "traceparent" in carrier else None


def sampled_in_frame(frame: bytes) -> Carrier | None:
    """The context of a delivery, if it is sampled."""
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    if count <= _SYSTEM_HEADERS:
        return None
    return sampled_in(frame, HEAD.size + max(key_bytes, 0), count, header_bytes)
