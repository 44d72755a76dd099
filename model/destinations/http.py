"""Options for an HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from duemq.model.destinations.http_headers import framing, legal_name, legal_value, of_messages, secret
from duemq.model.destinations.template import parse_template
from duemq.model.timing import shown

OCTETS: Final = "application/octet-stream"
_VALUE_CHARACTERS: Final = 2_000
_BODY_CHARACTERS: Final = 64 << 10

OnError = Literal["retry", "dead_letter"]


class HttpOptions(BaseModel):
    """`format`: the payload as it is (`raw`), or as a CloudEvent in `binary` or `structured` mode; `type` is the type
    of the event. `content_type`: used if the message has no such header.

    `headers`, `body`: templates; if `body` is empty, the body is the payload. `message_headers`: the names of the
    messages' headers that may become headers of the request; empty: all that a message may set. `on_4xx`, `on_5xx`:
    whether to retry or give up after such an answer. They do not apply to 408, 410, 425, 429 and 503, whose meaning
    is fixed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    format: Literal["raw", "cloudevents-binary", "cloudevents-structured"] = "raw"
    type: Annotated[str, Field(min_length=1, max_length=256)] = "duemq.message"
    content_type: Annotated[str, Field(min_length=1, max_length=256)] = OCTETS
    headers: Annotated[Mapping[str, str], Field(max_length=50, examples=[{"x-team": "billing"}])] = Field(
        default_factory=dict
    )
    message_headers: Annotated[tuple[str, ...], Field(max_length=50, examples=[["traceparent"]])] = ()
    body: Annotated[str, Field(max_length=_BODY_CHARACTERS)] = ""
    on_4xx: OnError = "retry"
    on_5xx: OnError = "retry"

    @field_validator("type", "content_type")
    @classmethod
    def _check_value(cls, value: str) -> str:
        if not legal_value(value):
            raise ValueError("it has visible ASCII characters, and spaces only between them")
        return value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        check_names(headers)
        for name, template in headers.items():
            if secret(name):
                raise ValueError(f"{name} is a credential: give it with credentials.headers, which are never shown")
            if len(template) > _VALUE_CHARACTERS:
                raise ValueError(f"the value of {name} has more than {_VALUE_CHARACTERS:,} characters")
            for part in parse_template(template):
                if isinstance(part, str) and not legal_value(part.strip(" ")):
                    raise ValueError(f"the value of {name} has visible ASCII characters, and spaces between them")
                if not isinstance(part, str) and part.name.startswith("payload"):
                    raise ValueError(f"the payload is no part of a header, such as {name}")
        return headers

    @field_validator("message_headers")
    @classmethod
    def _check_message_headers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not of_messages(name):
                raise ValueError(f"{shown(name)} is no header that a message may set")
        return names

    @field_validator("body")
    @classmethod
    def _check_body(cls, body: str) -> str:
        parse_template(body)
        return body

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.body and self.format != "raw":
            raise ValueError("a body is made of a template or is a CloudEvent, not both")
        return self

    @model_serializer(mode="wrap")
    def _without_default(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty `message_headers`: version 0.1.0 cannot read a declaration with an unknown field."""
        return {name: value for name, value in dump(self).items() if name != "message_headers" or value}


def check_names(headers: Mapping[str, object]) -> None:
    """Raises ValueError for a name that is malformed, repeated or reserved for duemq."""
    for name in headers:
        if not legal_name(name):
            raise ValueError("a header's name has up to 256 letters, digits and !#$%&'*+.^_`|~-")
        if name.lower() == "content-type":
            raise ValueError("content-type is the option content_type")
        if framing(name):
            raise ValueError(f"{name} is set by duemq itself")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("a header is there twice: upper and lower case are the same")
