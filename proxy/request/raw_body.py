"""A message as a raw HTTP body: the payload is the body, the fields are dashed request headers.

duemq-topic: orders    duemq-deliver-after: 90s    duemq-labels: a,b    duemq-header-trace-id: 4711
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duemq.model.errors import Rejected

_PREFIX = b"duemq-"
_OWN_HEADER = b"duemq-header-"
_FIELD_OF = {
    b"duemq-topic": "topic",
    b"duemq-destination": "destination",
    b"duemq-key": "key",
    b"duemq-deliver-at": "deliver_at",
    b"duemq-deliver-after": "deliver_after",
    b"duemq-deliver-after-ms": "deliver_after_ms",
    b"duemq-delay-level": "delay_level",
    b"duemq-expires-at": "expires_at",
    b"duemq-expires-after": "expires_after",
    b"duemq-zone": "zone",
    b"duemq-labels": "labels",
}
_KNOWN = ", ".join(name.decode() for name in _FIELD_OF) + ", duemq-header-NAME"


def read_dashed(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The fields of a message from ASGI headers. Values are text, except labels (a list) and the message's own headers
    (a `header_list`).

    ASGI header names are lower case, and so are those of the message's own headers.
    Raises Rejected `unknown_field`, and `bad_header` for a field that is given twice or is not UTF-8.
    """
    fields: dict[str, Any] = {}
    own: list[list[str]] = []
    for raw_name, raw_value in headers:
        raw_name = raw_name.lower()
        if not raw_name.startswith(_PREFIX):
            continue
        name = raw_name.decode("latin-1")
        try:
            value = raw_value.decode()
        except UnicodeDecodeError as error:
            raise Rejected("bad_header", f"the value of {name} is not UTF-8", name) from error
        if raw_name.startswith(_OWN_HEADER):
            own.append([name[len(_OWN_HEADER) :], value])
            continue
        if raw_name not in _FIELD_OF:
            raise Rejected("unknown_field", f"{name} is not a field; known are {_KNOWN}", name)
        if (field := _FIELD_OF[raw_name]) in fields:
            raise Rejected("bad_header", f"{name} is given twice", name)
        fields[field] = value
    if "labels" in fields:
        fields["labels"] = [label.strip() for label in fields["labels"].split(",")] if fields["labels"] else []
    if own:
        fields["header_list"] = own
    return fields
