"""Reads the forms of the console, and the times that people type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.proxy.console.caller import CSRF_FIELD, check_csrf
from duemq.web.body import read_body

MAX_SELECTED: Final = 1_000
_MAX_BYTES: Final = 4 << 20
_MAX_FIELDS: Final = MAX_SELECTED + 50
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d(?:\.\d{1,9})?)?")


class FormFields:
    """The fields of a form, each with its values in order."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def get(self, name: str, default: str = "") -> str:
        """The last value, stripped."""
        return self._values.get(name, [default])[-1].strip()

    def text(self, name: str) -> str:
        """The last value as typed."""
        return self._values.get(name, [""])[-1]

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])


async def read_form(request: Request, limit: int = _MAX_BYTES) -> FormFields:
    """Read the body as a form of up to `limit` bytes. Raises Rejected `bad_field`, `batch_too_large`, and `forbidden`
    for a form from another origin. Every route that changes something reads its form here."""
    body = await read_body(request, limit, "batch_too_large")
    try:
        text = bytes(body).decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Rejected("bad_field", f"this form cannot be read: {error}") from error
    form = FormFields(pairs)
    check_csrf(request, form.get(CSRF_FIELD))
    return form


def instant_text(text: str) -> str:
    """The text of a form's UTC time field, as the API expects it: browsers leave out the zone and the seconds."""
    match = _LOCAL.fullmatch(text.strip())
    return text.strip() if match is None else f"{match[1]}T{match[2]}{match[3] or ':00'}Z"


def given(fields: Mapping[str, str], *names: str) -> dict[str, str]:
    """The fields among `names` that are not empty."""
    return {name: fields[name] for name in names if fields.get(name)}
