"""Reads environment variables with our prefix: which are settings, and which come from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_origin

from pydantic import BaseModel

PREFIX = "DUEMQ_"
DELIMITER = "__"
CONFIG = "DUEMQ_CONFIG"
STRICT = "DUEMQ_STRICT_ENV"
_NOT_SETTINGS = frozenset(
    (
        "DUEMQ_URL", "DUEMQ_PROFILE", "DUEMQ_API_KEY", "DUEMQ_CA_FILE", "DUEMQ_CERT_FILE", "DUEMQ_KEY_FILE",
        "DUEMQ_SPARK_JARS", CONFIG, STRICT,
    )
)  # fmt: skip

# Kubernetes sets these in each pod, for each service in its namespace whose name begins with `duemq`.
_SERVICE = re.compile(
    r"DUEMQ_(?:.+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"DUEMQ_(?:.+_)?PORT=(?:tcp|udp|sctp)://.*", re.DOTALL)


def is_of_kubernetes(name: str, value: str) -> bool:
    """Whether the variable describes a service, such as DUEMQ_NODE_SERVICE_HOST for a service called duemq-node."""
    name = name.upper()
    return _SERVICE.fullmatch(name) is not None or _SERVICE_URL.fullmatch(f"{name}={value}") is not None


def is_strict(environment: Mapping[str, str]) -> bool:
    return environment.get(STRICT, "") not in ("", "0")


def values(environment: Mapping[str, str], settings: type[BaseModel]) -> dict[str, Any]:
    """The settings in the environment, nested as in the file; every value is text. Names are case-insensitive."""
    sections, tables, layer = dict(_sections(settings)), frozenset(_tables(settings)), dict[str, Any]()
    for variable, value in environment.items():
        if not variable.upper().startswith(PREFIX) or is_of_kubernetes(variable, value):
            continue
        name, nested, key = variable[len(PREFIX) :].lower().partition(DELIMITER)
        if nested and name in tables:
            _put(layer, (name, *key.split(DELIMITER)), value)
        elif nested and name in sections:
            keys = layer.setdefault(name, {})
            if isinstance(keys, dict):
                keys[key] = value
        elif not nested and name in settings.model_fields:
            layer[name] = value
    return layer


def strangers(environment: Mapping[str, str], settings: type[BaseModel]) -> list[str]:
    """A sentence for each variable with our prefix that is neither a setting nor otherwise known.

    A variable that begins with the name of a section is not included: a section's keys are checked with their values.
    """
    known_names = set(variables(settings))
    sections = {name.upper() for name in (*dict(_sections(settings)), *_tables(settings))}
    sentences = []
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in known_names | _NOT_SETTINGS or is_of_kubernetes(name, value):
            continue
        if name.removeprefix(PREFIX).partition(DELIMITER)[0] not in sections:
            (nearest,) = get_close_matches(name, sorted(known_names | _NOT_SETTINGS), 1, cutoff=0)
            sentences.append(f"the environment variable {name} is not a setting; the nearest one is {nearest}")
    return sentences


def variables(settings: type[BaseModel]) -> Iterator[str]:
    """The names of the variables of all settings."""
    sections = dict(_sections(settings))
    for name in settings.model_fields:
        if name in sections:
            yield from (f"{PREFIX}{name}{DELIMITER}{key}".upper() for key in sections[name].model_fields)
        else:
            yield f"{PREFIX}{name}".upper()


def _put(layer: dict[str, Any], path: Sequence[str], value: str) -> None:
    """Put a value at a nested path. If a part of the path already has a text, the check of that text reports it."""
    *names, last = path
    for name in names:
        inner = layer.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        layer = inner
    layer[last] = value


def _tables(settings: type[BaseModel]) -> Iterator[str]:
    """The names of settings that have one section for each of several names."""
    for name, field in settings.model_fields.items():
        if get_origin(field.annotation) is Mapping:
            yield name


def _sections(settings: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation
