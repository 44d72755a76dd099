"""Reads files with the credentials for a destination: TOML, or JSON if the name ends in `.json`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from duemq.model.errors import BadConfig


def read_credentials_file(path: Path) -> dict[str, Any]:
    """The contents of a file, unchecked. Raises BadConfig, which quotes nothing from the file."""
    try:
        text = path.read_text("utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadConfig(f"the credentials in {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        line = getattr(error, "lineno", None)  # the text of the error may quote a secret
        where = f", line {line}" if line else ""
        raise BadConfig(f"{path}{where} is not {'JSON' if path.suffix == '.json' else 'TOML'}") from None
    if not isinstance(values, dict):
        raise BadConfig(f"{path} has no names such as password")
    return values
