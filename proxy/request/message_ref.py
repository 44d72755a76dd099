"""Which message, or which topic, a request speaks of."""

from __future__ import annotations

import re

from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.timing import shown

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Ids and names both. What cannot be either was never issued, so it is simply unknown.
_TARGET = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def may_exist(ref: str) -> bool:
    return _TARGET.fullmatch(ref) is not None


def unknown(ref: str) -> Rejected:
    return Rejected("unknown_message", f"no message has the id or name {shown(ref)}, or it ended too long ago")


def message_ref(request: Request) -> str:
    """The `{id}` of a path: an id or a client-chosen name. Raises Rejected `unknown_message`."""
    ref: str = request.path_params["id"]
    if not may_exist(ref):
        raise unknown(ref)
    return ref


def check_topic(topic: str) -> str:
    """The topic, if that can be the name of one. Raises Rejected `bad_topic`."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        detail = f"topic must be 1 to 249 characters of A-Z a-z 0-9 . _ -, not {shown(topic)}"
        raise Rejected("bad_topic", detail, "topic")
    return topic
