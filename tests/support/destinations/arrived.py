"""What a consumer that is not of this project saw arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Arrived(NamedTuple):
    """`properties`: what the system itself keeps with a message, by its own names."""

    body: bytes
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
