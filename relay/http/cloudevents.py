"""Messages as CloudEvents 1.0 (https://cloudevents.io), in the two modes of the HTTP binding.

`id`: the message's id; `source`: `/duemq/TOPIC`; `time`: its due time; `subject`: its key, if the key is text.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final
from urllib.parse import quote

import orjson

from duemq.client.consumer.message import Message
from duemq.relay.http.times import timestamp

STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that the binding leaves unencoded in a header; space, quote and percent are encoded."""


def attributes(message: Message, type_: str) -> dict[str, str]:
    """The context attributes of the event, except `datacontenttype`."""
    made = {
        "specversion": "1.0", "id": message.identity, "source": f"/duemq/{quote(message.topic)}", "type": type_,
        "time": timestamp(message),
    }  # fmt: skip
    if message.key:
        try:
            made["subject"] = message.key.decode()
        except UnicodeDecodeError:
            pass  # a subject must be text; the key is sent in `duemq-key-base64`
    return made


def binary_headers(message: Message, type_: str) -> list[tuple[str, str]]:
    """The attributes as `ce-…` headers. The body is the payload, with its own content type."""
    return [
        (f"ce-{name}", quote(value, safe=_PLAIN, errors="replace"))
        for name, value in attributes(message, type_).items()
    ]


def structured_body(message: Message, type_: str, content_type: str) -> bytes:
    """The event as JSON. A payload that is JSON according to its content type and can be parsed becomes `data`; other
    text becomes a string in `data`; anything else becomes `data_base64`. Without a payload, both are absent."""
    event: dict[str, object] = {**attributes(message, type_), "datacontenttype": content_type}
    payload = message.payload
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    if is_json and _is_json(payload):
        event["data"] = orjson.Fragment(payload)
    elif payload:
        try:
            if is_json:
                raise UnicodeDecodeError("json", b"", 0, 0, "declared as JSON, but is not JSON")
            event["data"] = payload.decode()
        except UnicodeDecodeError:
            event["data_base64"] = b64encode(payload).decode()
    return orjson.dumps(event)


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True
