"""Reads the trace context that senders put into message headers (W3C Trace Context), and never changes it.

A message is traced if the last bit of its `traceparent` is set, which means that its sender sampled it.
"""

from __future__ import annotations

import re

from duemq.model.messages.record import HEADER, Headers

_NAME = b"traceparent"
_SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
_NAME_BYTES = HEADER.pack(len(_NAME), 0)[:2]
_FLAG = len(_NAME) + 54  # position of the last digit of the flags, counted from the start of the name
_ODD = frozenset(b"%c" % digit for digit in b"13579bdf")

Carrier = dict[str, str]
"""`traceparent` and `tracestate`, if present."""


def is_sampled(traceparent: str) -> bool:
    return _SAMPLED.match(traceparent) is not None


def asks_for_spans(packed: bytes) -> bool:
    """Whether a message's frame or packed headers seem to contain a sampled context. In packed headers, a value
    directly follows its name. This is a fast check, because it runs for each message."""
    at = packed.find(_NAME)
    while at >= 0:
        if packed[at - HEADER.size : at - HEADER.size + 2] == _NAME_BYTES:  # else it is in a longer name or a payload
            return packed[at + _FLAG : at + _FLAG + 1] in _ODD  # only the first one is used
        at = packed.find(_NAME, at + 1)
    return False


def sampled_context(headers: Headers) -> Carrier | None:
    """The context in a message's headers, if it is sampled."""
    carrier: Carrier = {}
    for name, content in headers:
        if name in ("traceparent", "tracestate"):
            carrier.setdefault(name, (content or b"").decode("latin-1"))
    return carrier if is_sampled(carrier.get("traceparent", "")) else None
