"""Options of a Redis or Valkey server."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from duemq.model.destinations.template import parse_name
from duemq.model.settings import Duration

NAMES: Final = ("topic", "key")
"""Placeholders of a name."""
_DATABASE: Final = re.compile(r"/?|/[0-9]{1,5}")
_LONGEST_WINDOW_MS: Final = 7 * 86_400_000


class RedisOptions(BaseModel):
    """`kind`, `name`: what messages are added to; `{{ topic }}` and `{{ key }}` in the name are those of the message.

    `max_length`: entries; 0 = any. At about this length a stream drops its oldest; a list takes no more. `dedup_window`
    (ms): a repeat within this time after the last one is not added; 0: repeats are added. `envelope`: lists and
    channels carry one value, JSON with all of the message, or (`none`) the payload alone. `require_receiver`: a message
    without a subscriber fails. `fsync`, `replicas`: a message counts as accepted only once the server has it on disk,
    and this many replicas have it (WAITAOF, WAIT).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stream", "list", "pubsub"] = "stream"
    name: Annotated[str, Field(min_length=1, max_length=512)] = "{{ topic }}"
    max_length: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    dedup_window: Annotated[Duration, Field(le=_LONGEST_WINDOW_MS)] = 10_800_000
    envelope: Literal["json", "none"] = "json"
    require_receiver: bool = False
    cluster: bool = False
    fsync: bool = False
    replicas: Annotated[int, Field(ge=0, le=10)] = 0

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        parse_name(name, NAMES)
        return name

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "pubsub" and self.max_length:
            raise ValueError("max_length is for streams and lists: nothing is kept in a channel")
        if self.kind == "pubsub" and (self.fsync or self.replicas):
            raise ValueError("fsync and replicas are for streams and lists: nothing is kept in a channel")
        if self.require_receiver and (self.kind != "pubsub" or self.cluster):
            raise ValueError("require_receiver is for pubsub without cluster: a node knows only its own subscribers")
        return self

    def check_url(self, url: str) -> None:
        """Raises ValueError."""
        parts = urlsplit(url)
        if not _DATABASE.fullmatch(parts.path) or parts.query or parts.fragment:
            raise ValueError("after host and port a Redis URL has at most the number of a database, such as /1")
        if self.cluster and database(url):
            raise ValueError("a cluster has no databases but 0")


def database(url: str) -> int:
    """The number of the database in a checked URL."""
    return int(urlsplit(url).path.strip("/") or 0)
