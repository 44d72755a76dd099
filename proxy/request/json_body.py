"""Reads JSON bodies with a bounded number of values, because two bytes of JSON may become a value of 64 bytes in
memory.

orjson builds all values at once and blocks the event loop. So if a body is long enough to have too many values, they
are counted first, part by part so that other tasks run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.timing import shown
from duemq.web.body import read_body

_JSON: Final = b"application/json"
MAX_VALUES: Final = 50_000  # in one request, unless its endpoint sets another limit
_MARKS: Final = b",[{"  # one precedes every value except the first, or the name of the value
_NOT_MARKS: Final = bytes(byte for byte in range(256) if byte not in _MARKS + b'"')
_QUICK_BYTES, _PART_BYTES = 512 << 10, 128 << 10  # scanned before other tasks run: about 1 ms


async def read_json(
    request: Request, limit: int, most_values: int = MAX_VALUES, code: str = "payload_too_large"
) -> dict[str, Any]:
    """The body, of up to `limit` bytes, which must be a JSON object. Raises Rejected `bad_json`, or `code` if the body
    is too large.

    If an object repeats a name, the last value is used.
    """
    return (await read_both(request, limit, most_values, code))[0]


async def read_both(
    request: Request, limit: int, most_values: int = MAX_VALUES, code: str = "payload_too_large"
) -> tuple[dict[str, Any], bytes | bytearray]:
    """See `read_json`. Also returns the body as sent."""
    body = await read_body(request, limit, code)
    if len(body) > 2 * most_values:
        await check_values(body, most_values, code)
    return parse_json(body), body


def check_fields(body: Iterable[str], fields: Sequence[str]) -> None:
    """Check that all fields of a body are known. Raises Rejected `unknown_field` with the first unknown field and a
    list of the known ones."""
    for name in body:
        if name not in fields:
            listed = f"known {'is' if len(fields) == 1 else 'are'} {', '.join(fields)}"
            raise Rejected("unknown_field", f"{shown(name)} is not a field here; {listed}", name[:80])


async def check_values(body: bytes | bytearray, most: int = MAX_VALUES, code: str = "payload_too_large") -> None:
    """Raises Rejected with `code` if a body has more than about `most` values. Marks inside strings are not counted."""
    if len(body) <= 2 * most:
        return
    marks = 0
    for start in range(0, len(body), _QUICK_BYTES):
        end = start + _QUICK_BYTES
        marks += sum(body.count(mark, start, end) for mark in _MARKS)
        if marks >= most:
            break
        await asyncio.sleep(0)
    else:
        return
    marks = 0
    for bare in _bare(body):
        marks += bare
        if marks >= most:
            raise Rejected(code, f"the body has more than {most} JSON values, the limit for this request")
        await asyncio.sleep(0)


def _bare(body: bytes | bytearray) -> Iterator[int]:
    """The number of marks outside strings, part by part."""
    start = within = 0
    while start < len(body):
        part = body[start : start + _PART_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # keep an escape sequence together
            part = body[start : start + _PART_BYTES + 1]
        start += len(part)
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
        pieces = part.split(b'"')
        yield sum(map(len, pieces[within::2]))
        within = (within + len(pieces) - 1) % 2


def parse_json(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a request body, which must be a JSON object. Raises Rejected `bad_json`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Rejected("bad_json", f"the body is not JSON: {error}") from error
    if type(value) is not dict:
        raise Rejected("bad_json", f"the body must be a JSON object, not {shown(value)}")
    return value


def is_json(media: bytes | None) -> bool:
    """Whether a Content-Type means JSON in UTF-8. Raises Rejected `unsupported_media_type` for another charset."""
    if media is None or media == _JSON:
        return media is not None
    kind, *parameters = media.decode("latin-1").lower().split(";")
    kind = kind.strip()
    if kind != "application/json" and not kind.endswith("+json"):
        return False
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            detail = f"JSON is read as UTF-8, not as {shown(value.strip())}"
            raise Rejected("unsupported_media_type", detail, "Content-Type")
    return True


def not_json(media: bytes | None) -> Rejected:
    sent = "none is given" if media is None else f"not {shown(media.decode('latin-1'))}"
    return Rejected("unsupported_media_type", f"Content-Type: application/json is needed here, {sent}", "Content-Type")
