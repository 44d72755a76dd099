"""The source of each setting: an option, the environment, a line of the file, or the default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from duemq.cli.settings import variables
from duemq.cli.settings.settings import Layers, Settings
from duemq.model.settings import IN_MS
from duemq.model.timing import format_duration

HIDDEN: Final = "(hidden)"
_HEADING = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"""\s*([\w."'-]+)\s*=""")


class OriginOfSetting(NamedTuple):
    """`value`: as in JSON, durations in ms; a secret is `HIDDEN`, or empty. `text`: as in the file. `sources`: all
    places that set the value, the effective one first; empty means the default."""

    key: str
    value: Any
    text: str
    sources: tuple[str, ...]


def origins(layers: Layers) -> Iterator[OriginOfSetting]:
    """All effective settings, in the order of `conf/duemq.toml`. Raises BadConfig."""
    settings = Settings.of(layers)
    lines = _line_numbers(layers.path)
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            for key, inner in type(value).model_fields.items():
                yield _origin((name, key), getattr(value, key), inner, layers, lines)
        elif name == "destinations":
            for destination in value:
                yield from _of_destination(destination, layers, lines)
        else:
            yield _origin((name,), value, field, layers, lines)


def _origin(
    path: tuple[str, ...], value: Any, field: FieldInfo, layers: Layers, lines: Mapping[tuple[str, ...], int]
) -> OriginOfSetting:
    key, sources = ".".join(path), tuple(_sources(path, layers, lines))
    if not field.repr:
        value = HIDDEN if value else ""
    elif isinstance(value, Path):
        value = str(value)
    elif isinstance(value, tuple):
        value = list(value)
    # For a list of durations, the mark is on the type of the items.
    marks = [
        *field.metadata,
        *(mark for item in get_args(field.annotation) for mark in getattr(item, "__metadata__", ())),
    ]
    return OriginOfSetting(key, value, _text(value, IN_MS in marks), sources)


def _of_destination(name: str, layers: Layers, lines: Mapping[tuple[str, ...], int]) -> Iterator[OriginOfSetting]:
    """The keys set for a destination, without its credentials. They have no defaults."""
    given: dict[str, Any] = {}
    for layer in (layers.file, layers.environment, layers.options):
        given |= layer.get("destinations", {}).get(name, {})
    for key, value in given.items():
        value = HIDDEN if key == "credentials" else value
        path = ("destinations", name, key)
        yield OriginOfSetting(".".join(path), value, _text(value), tuple(_sources(path, layers, lines)))


def _sources(path: tuple[str, ...], layers: Layers, lines: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    if _given(layers.options, path):
        yield "option"
    if _given(layers.environment, path):
        yield variables.PREFIX + variables.DELIMITER.join(path).replace("-", "_").upper()
    if _given(layers.file, path):
        # A key in an inline table is reported with the line of the table.
        line = next((lines[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in lines), None)
        yield f"{layers.path}:{line}" if line else str(layers.path)


def _given(layer: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        layer = layer.get(name) if isinstance(layer, Mapping) else None
    return layer is not None


def _text(value: Any, is_duration: bool = False) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return (" " if is_duration else ", ").join(_text(item, is_duration) for item in value)
    return format_duration(value) if is_duration else str(value)


def _line_numbers(path: Path | None) -> dict[tuple[str, ...], int]:
    """The line of each heading and key of a valid TOML file."""
    numbers: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path else (), start=1):
        if heading := _HEADING.match(line):
            section = _names(heading[1])
            numbers.setdefault(section, number)
        elif key := _KEY.match(line):
            numbers.setdefault((*section, *_names(key[1])), number)
    return numbers


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("\"'") for name in dotted.split("."))
