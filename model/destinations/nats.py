"""Options for a NATS server, and the form of its users' keys."""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

from duemq.model.destinations.template import fill, parse_name

NAMES: Final = ("topic", "key")
"""The placeholders in a subject."""
_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_SERVERS_OWN: Final = ("$SYS", "$JS")
_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+([A-Za-z0-9_.-]+)\s+-+END NATS USER JWT-")
_SEED: Final = re.compile(r"\bSU[A-D][A-Z2-7]{55}\b")


class UserKey(NamedTuple):
    """`seed`: the seed of the nkey that signs. `jwt`: the account's statement about its user; empty if the server knows
    the key."""

    seed: str
    jwt: str


def read_user_key(text: str) -> UserKey:
    """The key in the text of a `.creds` file, or in a seed alone. Raises ValueError, which reveals nothing of the
    text."""
    seeds, jwt = _SEED.findall(text), _JWT.search(text)
    if len(seeds) != 1 or (jwt is None and text.strip() != seeds[0]):
        raise ValueError("it is the text of a .creds file with the JWT and the seed of a user, or a user's seed (SU…)")
    return UserKey(seeds[0], jwt[1] if jwt else "")


class NatsOptions(BaseModel):
    """`subject`: the subject to which messages are published; it may contain `{{ topic }}` and `{{ key }}`.
    `jetstream`: a stream acknowledges each message; otherwise messages go to core NATS, which keeps none. `stream`: the
    stream that must capture the subject; empty = any stream.
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
