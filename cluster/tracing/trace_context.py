"""The trace context that senders put into the headers of messages (W3C Trace Context). Nothing here changes it.

A message is traced where the last bit of its `traceparent` says that its sender sampled it.
"""

from __future__ import annotations

import re

from duemq.model.record import HEAD, unpack_headers

_NAME = b"traceparent"
_SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
_FLAG = len(_NAME) + 54  # where the last digit of the flags is, behind the name
_ODD = frozenset(b"%c" % digit for digit in b"13579bdf")

Carrier = dict[str, str]
"""`traceparent` and `tracestate`, as far as they are there."""


def is_sampled(traceparent: str) -> bool:
    return _SAMPLED.match(traceparent) is not None


def sampled_in(packed: bytes, count: int) -> Carrier | None:
    """The context in packed headers, of which there are `count`, if it is sampled."""
    return _context(packed, 0, count) if _may_be_sampled(packed) else None


def sampled_in_frame(frame: bytes) -> Carrier | None:
    """The context of a delivery, if it is sampled."""
    if not _may_be_sampled(frame):
        return None
    key_bytes, count, _ = HEAD.unpack_from(frame)
    return _context(frame, HEAD.size + max(key_bytes, 0), count)


def _may_be_sampled(data: bytes) -> bool:
    """False for nearly all, and quickly: each message is looked at. A value follows its name in packed headers."""
    at = data.find(_NAME)
    while at >= 0:
        if data[at + _FLAG : at + _FLAG + 1] in _ODD:
            return True
        at = data.find(_NAME, at + 1)
    return False


def _context(packed: bytes, start: int, count: int) -> Carrier | None:
    carrier: Carrier = {}
    for name, content in unpack_headers(packed, start, count):
        if name in ("traceparent", "tracestate"):
            carrier.setdefault(name, content.decode("latin-1"))
    return carrier if is_sampled(carrier.get("traceparent", "")) else None
