"""The sections `[destinations.NAME]` of the settings: destinations that are declared at the start."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class DeclaredDestination:
    """`credentials`: None where the settings give none; then they are as others gave them."""

    destination: Destination
    credentials: Credentials | None


def _declared(sections: object) -> object:
    if not isinstance(sections, Mapping):
        raise ValueError("it has a section for each: [destinations.NAME]")
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
        fields = {key: _lists(_list(key, value)) for key, value in section.items() if key in FIELDS}
        return DeclaredDestination(read_destination({"name": name, **fields}), _credentials(section))
    except (Rejected, BadConfig) as error:
        raise ValueError(f"{name}: {error}") from None


def _credentials(section: Mapping[str, Any]) -> Credentials | None:
    """Those of the file, and over them those that stand in the section, or in the environment."""
    if not section.keys() & set(_BESIDE):
        return None
    own = section.get("credentials", {})
    if not isinstance(own, Mapping):
        raise BadConfig("credentials is a section with names such as password")
    path = section.get("credentials_file", "")
    if not isinstance(path, str):
        raise BadConfig("credentials_file is the name of a file")
    values = (read_credentials_file(Path(path)) if path else {}) | dict(own)
    return read_credentials(_lists(values))


def _lists(value: Any) -> Any:
    """Lists that the environment gives as text with commas."""
    if not isinstance(value, Mapping):
        return value
    return {key: _list(key, each) for key, each in value.items()}


def _list(key: str, value: Any) -> Any:
    if key in _LISTS and isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


def with_names_of(names: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """What variables say, under the names of the file: those of variables are in lower case, and have no hyphens."""
    spelt = {name.lower().replace("-", "_"): name for name in names}
    return {spelt.get(name, name): value for name, value in variables.items()}


DeclaredDestinations = Annotated[Mapping[str, DeclaredDestination], BeforeValidator(_declared)]
