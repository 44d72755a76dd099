"""Options of a RabbitMQ broker."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from duemq.model.destinations.template import parse_name

SHORT_BYTES: Final = 255
"""The most that AMQP's short strings hold: names, routing keys, message ids."""
NAMES: Final = ("topic", "key")
"""Placeholders of a routing key."""


class RabbitMqOptions(BaseModel):
    """`exchange`: where messages are published; empty = the default exchange, whose routing keys are names of queues.

    `routing_key`: text in which `{{ topic }}` and `{{ key }}` stand for those of the message. `mandatory`: a message
    that no queue gets fails; otherwise it is gone. `persistent`: queues keep it over a restart of the broker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    exchange: Annotated[str, Field(max_length=SHORT_BYTES)] = ""
    routing_key: Annotated[str, Field(max_length=SHORT_BYTES)] = "{{ topic }}"
    persistent: bool = True
    mandatory: bool = True

    @field_validator("exchange", "routing_key")
    @classmethod
    def _check_size(cls, text: str) -> str:
        if len(text.encode(errors="replace")) > SHORT_BYTES:
            raise ValueError(f"it has up to {SHORT_BYTES} bytes in UTF-8")
        return text

    @field_validator("routing_key")
    @classmethod
    def _check_placeholders(cls, text: str) -> str:
        parse_name(text, NAMES)
        return text
