"""Options of a NATS server."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class NatsOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
