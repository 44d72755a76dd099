"""The base of all sections of the settings, and the types of their fields.

A duration is in ms unless its name ends in `_s`; a size is in bytes. In a file and in the environment, both may be text
("24h", "8MiB"), and a list may be text with commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from duemq.model.errors import Rejected
from duemq.model.timing import parse_duration, parse_levels, shown

_LISTEN = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", re.ASCII)
_TOPIC_PATTERN = re.compile(r"[A-Za-z0-9._*?!\[\]-]{1,249}")
_BYTE_SIZE = TypeAdapter(ByteSize)
ORIGIN = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")
"""An origin as browsers write it: scheme, host and port."""

KIB, MIB = 1 << 10, 1 << 20


def reader(read: Callable[[str], Any]) -> BeforeValidator:
    """A validator that parses text with `read`, and leaves other values to the field's type."""

    def validate(value: object) -> object:
        try:
            return read(value) if isinstance(value, str) else value
        except Rejected as error:
            raise ValueError(error.detail) from error

    return BeforeValidator(validate)


def duration(text: str) -> int:
    """The milliseconds in a text such as 90s, 2h30m or 7d."""
    return parse_duration(text, "it", text=True)


def _size(text: str) -> int:
    try:
        return int(_BYTE_SIZE.validate_python(text))
    except ValidationError as error:
        raise ValueError("it is not a size such as 1048576, 64KiB or 8MiB") from error


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _topic_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not _TOPIC_PATTERN.fullmatch(pattern):
            raise ValueError(f"{shown(pattern)} is neither a topic nor a pattern such as orders.*")
    return patterns


def _are_networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        try:
            ip_network(text)
        except ValueError:
            raise ValueError(f"{shown(text)} is no network such as 10.0.0.0/8 or fd00::/8") from None
    return texts


def networks_of(texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text) for text in texts)


def delays(text: str) -> tuple[int, ...]:
    """The milliseconds of each delay in a text such as `1s 5s 1m`."""
    return parse_levels(text.replace(",", " "), "it")


def no_switch(value: object) -> object:
    # Pydantic would read `true` as 1.
    if isinstance(value, bool):
        raise ValueError("it is no switch")
    return value


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it is true or false")
    return text == "true"


IN_MS: Final = "ms"
"""Marks a number as a duration."""
Duration = Annotated[int, reader(duration), Field(ge=0), IN_MS]
Size = Annotated[int, reader(_size), Field(ge=0)]
Percent = Annotated[int, Field(ge=1, le=100)]
Switch = Annotated[StrictBool, reader(_switch)]
Words = Annotated[tuple[str, ...], reader(_words)]
Networks = Annotated[Words, AfterValidator(_are_networks)]
TopicPatterns = Annotated[Words, AfterValidator(_topic_patterns)]
Delays = Annotated[tuple[Duration, ...], reader(delays), Field(min_length=1)]


def host_and_port(listen: str) -> str:
    """The address, which must be valid. Raises ValueError."""
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[1]) > 65_535:
        raise ValueError("it must be HOST:PORT, such as 127.0.0.1:8787 or [::1]:8787")
    return listen


class SettingsSection(BaseModel):
    """One section of the settings. Each folder with settings has the model of its section."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_switches(cls, value: object, info: ValidationInfo) -> object:
        return value if cls.model_fields[str(info.field_name)].annotation is bool else no_switch(value)
