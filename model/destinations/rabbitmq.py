"""Options for a RabbitMQ broker."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from duemq.model.destinations.template import parse_name

SHORT_BYTES: Final = 255
"""The most bytes in AMQP's short strings: names, routing keys and message ids."""
NAMES: Final = ("topic", "key")
"""The placeholders in a routing key."""


class RabbitMqOptions(BaseModel):
    """`exchange`: the exchange to which messages are published; empty = the default exchange, whose routing keys are
    names of queues.

    `routing_key`: text in which `{{ topic }}` and `{{ key }}` are replaced by those of the message. `mandatory`: a
    message that reaches no queue fails; otherwise it is lost. `persistent`: queues keep messages across a restart of
    the broker. `envelope`: the payload is a deferred task of `celery` or `dramatiq`, which has an exchange and a
    routing key in it.

    `stream`: the stream to which messages are published by the stream protocol, without the other options; empty: AMQP
    is used. `stream_port`: the port of that protocol; 0 = 5552, and 5551 with TLS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    exchange: Annotated[str, Field(max_length=SHORT_BYTES)] = ""
    routing_key: Annotated[str, Field(max_length=SHORT_BYTES)] = "{{ topic }}"
    persistent: bool = True
    mandatory: bool = True
    envelope: Literal["none", "celery", "dramatiq"] = "none"
    stream: Annotated[str, Field(max_length=SHORT_BYTES)] = ""
    stream_port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 0

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

    @field_validator("envelope")
    @classmethod
    def _check_envelope(cls, envelope: str, info: ValidationInfo) -> str:
        for name in ("exchange", "routing_key") if envelope != "none" else ():
            if info.data.get(name) != cls.model_fields[name].default:
                raise ValueError(f"with it there is no {name}: the task has it")
        return envelope

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the default of `envelope`: version 0.2.0 cannot read a declaration with an unknown option."""
        fields: dict[str, Any] = dump(self)
        if self.envelope == "none":
            fields.pop("envelope", None)
        return fields

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, stream: str, info: ValidationInfo) -> str:
        if not stream.isascii() or any(character <= " " for character in stream):
            raise ValueError("a stream's name has visible ASCII characters here")
        for name in ("exchange", "routing_key", "persistent", "mandatory", "envelope") if stream else ():
            if info.data.get(name) != cls.model_fields[name].default:
                raise ValueError(f"with it there is no {name}: messages go to the stream itself")
        return stream

    @field_validator("stream_port")
    @classmethod
    def _check_stream_port(cls, port: int, info: ValidationInfo) -> int:
        if port and not info.data.get("stream"):
            raise ValueError("it goes with stream")
        return port
