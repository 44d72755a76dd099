"""Options of an HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class HttpOptions(BaseModel):
    """`format`: the payload as it is (`raw`), or as a CloudEvent in `binary` or `structured` mode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    format: Literal["raw", "cloudevents-binary", "cloudevents-structured"] = "raw"
    headers: Annotated[Mapping[str, str], Field(max_length=50)] = Field(default_factory=dict)
