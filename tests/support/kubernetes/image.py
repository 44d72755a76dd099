"""What the image says of a container that is started from it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_DOCKERFILE = Path(__file__).parents[3] / "Dockerfile"


@dataclass(frozen=True)
class Image:
    entrypoint: tuple[str, ...]
    environment: dict[str, str]

    @classmethod
    def read(cls, path: Path = _DOCKERFILE) -> Self:
        """Of the last stage. `PATH` is left out: that of an installation elsewhere."""
        last = path.read_text().split("\nFROM ")[-1].replace("\\\n", " ")
        pairs = (word.partition("=") for line in re.findall(r"(?m)^ENV (.*)$", last) for word in shlex.split(line))
        environment = {name: value for name, _, value in pairs if name != "PATH"}
        (entrypoint,) = re.findall(r"(?m)^ENTRYPOINT (.*)$", last)
        return cls(tuple(json.loads(entrypoint)), environment)
