"""The topics that belong to a consumer group."""

from __future__ import annotations

import re
from typing import Final

from duemq.model.errors import Rejected

RETRY: Final = "retry."
DEAD: Final = "dlq."

_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")


def checked_group(group: str) -> str:
    """The group, if its name can be part of a topic's name. Raises Rejected `bad_group`."""
    if not _GROUP.fullmatch(group):
        raise Rejected("bad_group", f"{group[:200]!r} is not a group: 1 to 200 of A-Z a-z 0-9 . _ -", "group")
    return group


def retry_topic(group: str) -> str:
    """The topic for messages that the group could not handle, and that will be retried."""
    return RETRY + group


def dead_letter_topic(group: str) -> str:
    """The topic for messages that the group gave up on."""
    return DEAD + group


def group_of_letters(topic: str) -> str:
    """The group whose dead letters are in a topic; empty for other topics."""
    return topic.removeprefix(DEAD) if topic.startswith(DEAD) else ""
