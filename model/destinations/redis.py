"""Options for a Redis or Valkey server."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from duemq.model.destinations.template import QUEUE, parse_name
from duemq.model.settings import Duration

NAMES: Final = ("topic", "key", "queue")
"""The placeholders in a name."""
TASK_NAMES: Final = {"celery": "{{ queue }}", "dramatiq": "dramatiq:{{ queue }}"}
"""The default names of the lists that Celery's and Dramatiq's workers read."""
_DATABASE: Final = re.compile(r"/?|/[0-9]{1,5}")
_LONGEST_WINDOW_MS: Final = 7 * 86_400_000


class RedisOptions(BaseModel):
    """`kind`, `name`: the stream, list or channel to which messages are added; `{{ topic }}` and `{{ key }}` in the
    name are replaced by those of the message.

    `max_length`: the most entries; 0 = any number. At about this length a stream drops its oldest entries, and a list
    accepts no more. `dedup_window` (ms): a repeat within this time after the last one is not added; 0: repeats are
    added. `envelope`: an entry of a list, or a message on a channel, is a single value: JSON with all of the message,
    the payload alone (`none`), or a deferred task in the form that its workers read (`celery`, `dramatiq`), whose queue
    replaces `{{ queue }}` in the name. `require_receiver`: a message without a subscriber fails. `fsync`, `replicas`: a
    message is accepted only once the server has it on disk, and this many replicas have it (WAITAOF, WAIT).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stream", "list", "pubsub"] = "stream"
    name: Annotated[str, Field(min_length=1, max_length=512)] = "{{ topic }}"
    max_length: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    dedup_window: Annotated[Duration, Field(le=_LONGEST_WINDOW_MS)] = 10_800_000
    envelope: Literal["json", "none", "celery", "dramatiq"] = "json"
    require_receiver: bool = False
    cluster: bool = False
    fsync: bool = False
    replicas: Annotated[int, Field(ge=0, le=10)] = 0

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        """Complete the options for tasks: they go to lists, by default to those that the workers read by default."""
        if isinstance(fields, dict) and (name := TASK_NAMES.get(str(fields.get("envelope")))):
            return {"kind": "list", "name": name} | fields
        return fields

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
        task = self.envelope in TASK_NAMES
        if task and (self.kind != "list" or self.cluster):
            raise ValueError(f"envelope {self.envelope} is for lists, without cluster")
        if task != (QUEUE in parse_name(self.name, NAMES)):
            raise ValueError("{{ queue }} in the name goes with envelope celery or dramatiq, and these need it")
        if self.envelope == "dramatiq" and not self.dedup_window:
            raise ValueError("envelope dramatiq needs a dedup_window")
        if self.require_receiver and (self.kind != "pubsub" or self.cluster):
            raise ValueError("require_receiver is for pubsub without cluster: a node knows only its own subscribers")
        return self

    def check_url(self, url: str) -> None:
        """Check the URL of the server. Raises ValueError."""
        parts = urlsplit(url)
        if not _DATABASE.fullmatch(parts.path) or parts.query or parts.fragment:
            raise ValueError("after host and port a Redis URL has at most the number of a database, such as /1")
        if self.cluster and database(url):
            raise ValueError("a cluster has no databases but 0")


def database(url: str) -> int:
    """The number of the database in a checked URL."""
    return int(urlsplit(url).path.strip("/") or 0)
