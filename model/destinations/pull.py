"""A group: a destination that workers pull messages from over HTTP (ADR 91). Its name is `TOPIC.GROUP`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from duemq.model.errors import Rejected
from duemq.model.settings import Duration
from duemq.model.timing import shown
from duemq.model.topics.rules import TOPIC

PULL: Final = "pull:"
"""The URL of a group."""
MAX_GROUPS: Final = 100
MAX_GROUPS_OF_TOPIC: Final = 20
MIN_VISIBILITY_MS: Final = 100
MAX_VISIBILITY_MS: Final = 12 * 3_600_000
MAX_DELAY_MS: Final = 366 * 86_400_000  # of a nack
MAX_ATTEMPTS: Final = 101
DEFAULT_ATTEMPTS: Final = 17

_GROUP: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME_CHARACTERS: Final = 188  # `destination.NAME` is a group of at most 200


class PullOptions(BaseModel):
    """`visibility`: how long (ms) a received message is hidden from other workers, unless a receive says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    visibility: Annotated[Duration, Field(ge=MIN_VISIBILITY_MS, le=MAX_VISIBILITY_MS)] = 30_000


def group_name(topic: str, group: str) -> str:
    """The destination's name of a topic's group. Raises Rejected `bad_field`."""
    if not _GROUP.fullmatch(group):
        raise Rejected("bad_field", f"a group has 1 to 64 characters of A-Z a-z 0-9 _ -, not {shown(group)}", "group")
    name = f"{topic}.{group}"
    if len(name) > _NAME_CHARACTERS:
        detail = f"topic and group have {len(name) - 1} characters together; the limit is {_NAME_CHARACTERS - 1}"
        raise Rejected("bad_field", detail, "group")
    return name


def split_name(name: str) -> tuple[str, str]:
    """Topic and group of a name. Raises ValueError for another name."""
    topic, dot, group = name.rpartition(".")
    if not dot or not TOPIC.fullmatch(topic) or not _GROUP.fullmatch(group) or len(name) > _NAME_CHARACTERS:
        raise ValueError(f"a group is named TOPIC.GROUP, in up to {_NAME_CHARACTERS} characters")
    return topic, group


def retry_fields(attempts: int) -> dict[str, Any]:
    """The retry rule of a group: `attempts` deliveries, each at once after the one before has failed."""
    return {"kind": "exponential", "first": 1, "factor": 1.0, "most": 1, "retries": attempts - 1}
