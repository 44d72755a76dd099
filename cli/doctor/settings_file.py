"""Checks that the settings file and the files of credentials that it names do not expose secrets."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from duemq.cli.doctor.finding import Finding, ok, warning
from duemq.cli.settings.settings import Settings

_SUBJECT = "settings file"


def check_settings_file(path: Path) -> Iterator[Finding]:
    """Check whether other users may read the secrets in a valid file."""
    document = tomllib.loads(path.read_text("utf-8"))
    yield _judge(path, list(_secrets_in(document)))
    for name, fields in document.get("destinations", {}).items():
        if file := fields.get("credentials_file"):
            yield _judge(Path(file), [f"the credentials of destination {name}"])


def _judge(path: Path, secrets: list[str]) -> Finding:
    if secrets and path.stat().st_mode & 0o007:
        detail = f"{path} is open to all users, and has {', '.join(secrets)}"
        return warning(_SUBJECT, detail, f"chgrp duemq {path} && chmod 640 {path}")
    return ok(_SUBJECT, f"{path} shows no secret to other users")


def _secrets_in(document: Mapping[str, Any]) -> Iterator[str]:
    """The names of the secrets that are given. Their values are never printed."""
    for name, section in document.items():
        if not isinstance(section, Mapping):
            continue
        if name == "destinations":
            yield from (f"{name}.{one}.credentials" for one, fields in section.items() if "credentials" in fields)
            continue
        fields = getattr(Settings.model_fields[name].annotation, "model_fields", {})
        yield from (f"{name}.{key}" for key, value in section.items() if value and not fields[key].repr)
