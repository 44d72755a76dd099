"""The error for an invalid declaration: it has the field, the field's rule, and its example if there is one. The given
value is left out, because it may be a secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from duemq.model.errors import Rejected
from duemq.model.settings import IN_MS
from duemq.model.timing import format_duration

_OBJECT: Final = "an object"
_NOUNS: Final[Mapping[Any, str]] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", SecretStr: "text", tuple: "a list",
    Mapping: _OBJECT,
}  # fmt: skip
# What the members of lists and mappings must be, by how the kind of the problem begins.
_OF_MEMBERS: Final = {"string": "text", "int": "a whole number"}


class UrlError(ValueError):
    """A problem with the URL, found by a validator of the whole declaration."""


def rejection(error: ValidationError, model: type[BaseModel], below: str = "") -> Rejected:
    """The first problem, as Rejected `bad_field` or `unknown_field`. `model`: the model that was parsed. `below`: the
    field of the request that contains it."""
    problem = error.errors(include_url=False, include_input=False)[0]
    kind, place = problem["type"], ".".join(map(str, (*filter(None, [below]), *problem["loc"])))
    field, fields = _field_at(model, problem["loc"])
    if kind == "extra_forbidden":
        return Rejected("unknown_field", f"{place} is no field here; known are {', '.join(fields)}", place)
    if kind == "value_error":
        wrong = problem["ctx"]["error"]
        place, text = "url" if isinstance(wrong, UrlError) else place, str(wrong)
    elif kind == "missing":
        text = "it is needed" + _example(field)
    elif kind == "literal_error":
        text = f"it is {problem['ctx']['expected']}"
    else:
        text = f"it is {_what(field)}" if field is not None else f"it is {_member(kind)}"
    return Rejected("bad_field", f"{place}: {text}", place)


def _field_at(model: type[BaseModel], place: tuple[int | str, ...]) -> tuple[FieldInfo | None, Mapping[str, FieldInfo]]:
    """The field at a place (None for a member of a list or mapping), and all fields next to it."""
    field, fields = None, model.model_fields
    for number, part in enumerate(place):
        if number:
            inner = field.annotation if field is not None else None
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                return None, {}
            fields = inner.model_fields
        field = fields.get(str(part))
    return field, fields


def _what(field: FieldInfo) -> str:
    kind = get_origin(field.annotation) or field.annotation
    noun = "a duration" if IN_MS in field.metadata else _NOUNS.get(kind, _OBJECT)
    return noun + _bounds(field, kind) + _example(field)


def _bounds(field: FieldInfo, kind: Any) -> str:
    metadata: list[Any] = field.metadata
    leasts: list[Any] = [one.ge for one in metadata if isinstance(one, Ge)]
    mosts: list[Any] = [one.le for one in metadata if isinstance(one, Le)]
    least, most = max(leasts, default=None), min(mosts, default=None)
    if least is not None:
        number = format_duration if IN_MS in metadata else "{:,}".format
        return f" of at least {number(least)}" if most is None else f" from {number(least)} to {number(most)}"
    longest = next((one.max_length for one in metadata if isinstance(one, MaxLen)), None)
    if longest is None:
        return ""
    shortest = next((f"{one.min_length} to " for one in metadata if isinstance(one, MinLen)), "up to ")
    return f" of {shortest}{longest:,}{' characters' if kind is str else ''}"


def _example(field: FieldInfo | None) -> str:
    if field is None or not field.examples:
        return ""
    example = field.examples[0]
    return f", such as {example if isinstance(example, str) else json.dumps(example)}"


def _member(kind: str) -> str:
    return _OF_MEMBERS.get(kind.partition("_")[0], f"{_OBJECT} of names and values")
