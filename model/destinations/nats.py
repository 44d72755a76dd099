"""Options of a NATS server."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

from duemq.model.destinations.template import fill, parse_name

NAMES: Final = ("topic", "key")
"""Placeholders of a subject."""
_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_SERVERS_OWN: Final = ("$SYS", "$JS")


class NatsOptions(BaseModel):
    """`subject`: where messages are published, with `{{ topic }}` and `{{ key }}` in it or not. `jetstream`: a stream
    acknowledges each message; else core NATS, which keeps none. `stream`: the one that has to be behind the subject;
    empty = any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: Annotated[str, Field(max_length=500)] = "{{ topic }}"
    jetstream: StrictBool = True
    stream: Annotated[str, Field(max_length=255)] = ""

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str) -> str:
        example = fill(parse_name(subject, NAMES), dict.fromkeys(NAMES, "x"))
        if not all(re.fullmatch(r"[!-~]+", token) for token in example.split(".")):
            raise ValueError("it has tokens of ASCII characters, no spaces, none of them empty, with . between them")
        if "*" in example or ">" in example:
            raise ValueError("* and > are for subscriptions: a message has one subject")
        if example.split(".")[0] in _SERVERS_OWN:
            raise ValueError(f"subjects that begin with {' or '.join(_SERVERS_OWN)} are commands to the server")
        return subject

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, stream: str) -> str:
        if stream and not (_STREAM.fullmatch(stream) and stream.isascii()):
            raise ValueError(r"a stream's name has 1 to 255 ASCII characters without spaces and . * > / \ in it")
        return stream

    @model_validator(mode="after")
    def _check_stream_is_of_use(self) -> Self:
        if self.stream and not self.jetstream:
            raise ValueError("stream: core NATS knows no streams; leave it out, or set jetstream")
        return self
