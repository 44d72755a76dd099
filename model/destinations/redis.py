"""Options of a Redis server."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RedisOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
