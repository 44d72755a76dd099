"""Finished JSON answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    """`content` is anything orjson can write."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(content), status, headers)
