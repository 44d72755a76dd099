"""Options of a RocketMQ cluster."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RocketMqOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
