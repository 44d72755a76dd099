"""Options of a RabbitMQ broker."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RabbitMqOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
