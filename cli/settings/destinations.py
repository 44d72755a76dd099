"""The settings sections `[destinations.NAME]`: destinations that are declared when a server starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from duemq.cli.settings.credentials_file import read_credentials_file
from duemq.cluster.admin.destination_registry import FIELDS
from duemq.model.destinations.destination import Credentials, Destination, read_credentials, read_destination
from duemq.model.errors import BadConfig, Rejected

_BESIDE: Final = ("credentials", "credentials_file")
_LISTS: Final = ("topics", "signing_secrets", "delays")
_FROM_TEXT: Final[Mapping[str, Callable[[str], Any]]] = {
    "rate": int, "concurrency": int, "timeout": int, "first": int, "most": int, "retries": int, "first_level": int,
    "factor": float,
    "ordered": lambda text: {"true": True, "false": False}.get(text, text),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeclaredDestination:
    """`credentials`: None if the settings have none; existing credentials then stay."""

    destination: Destination
    credentials: Credentials | None


def _declared(sections: object) -> object:
    if not isinstance(sections, Mapping):
        raise ValueError("use a section for each: [destinations.NAME]")
    return {name: _read(str(name), section) for name, section in sections.items()}


def _read(name: str, section: object) -> DeclaredDestination:
    if isinstance(section, DeclaredDestination):
        return section
    if not isinstance(section, Mapping):
        raise ValueError(f"{name} must be a section: [destinations.{name}]")
    try:
        if unknown := sorted(section.keys() - {*FIELDS, *_BESIDE}):
            known = ", ".join((*FIELDS, *_BESIDE))
            raise ValueError(f"{name}.{unknown[0]} is not a setting; known are {known}")
        fields = {key: _values(_value(key, value)) for key, value in section.items() if key in FIELDS}
        return DeclaredDestination(read_destination({"name": name, **fields}), _credentials(section))
    except (Rejected, BadConfig) as error:
        raise ValueError(f"{name}: {error}") from None


def _credentials(section: Mapping[str, Any]) -> Credentials | None:
    """The credentials in the file, overridden by those in the section or the environment."""
    if not section.keys() & set(_BESIDE):
        return None
    own = section.get("credentials", {})
    if not isinstance(own, Mapping):
        raise BadConfig("credentials is a section with names such as password")
    path = section.get("credentials_file", "")
    if not isinstance(path, str):
        raise BadConfig("credentials_file is the name of a file")
    values = (read_credentials_file(Path(path)) if path else {}) | dict(own)
    return read_credentials(_values(values))


def _values(value: Any) -> Any:
    """Convert texts from the environment: lists with commas, numbers, switches."""
    if not isinstance(value, Mapping):
        return value
    return {key: _value(key, each) for key, each in value.items()}


def _value(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if key in _LISTS:
        return [word.strip() for word in value.split(",") if word.strip()]
    try:
        return _FROM_TEXT.get(key, str)(value)
    except ValueError:
        return value  # validation reports the error


def with_names_of(names: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables' values under the names in the file: variable names are in lower case here, and have no hyphens."""
    spelt = {name.lower().replace("-", "_"): name for name in names}
    return {spelt.get(name, name): value for name, value in variables.items()}


DeclaredDestinations = Annotated[Mapping[str, DeclaredDestination], BeforeValidator(_declared)]
