"""Reads the message reference or the topic in a request."""

from __future__ import annotations

from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.timing import shown
from duemq.model.topics.rules import NAME_RULE, TOPIC, TOPIC_RULE, is_name


def unknown(ref: str) -> Rejected:
    if not is_name(ref):
        return Rejected("unknown_message", f"no message can have the name {shown(ref)}: a name has {NAME_RULE}")
    return Rejected("unknown_message", f"no message has the id or name {shown(ref)}, or it ended too long ago")


def message_ref(request: Request) -> str:
    """The `{id}` of a path: an id or a client-chosen name. Raises Rejected `unknown_message`."""
    ref: str = request.path_params["id"]
    if not is_name(ref):
        raise unknown(ref)
    return ref


def check_topic(topic: str) -> str:
    """The topic, if its name is valid. Raises Rejected `bad_topic`."""
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        detail = f"topic {TOPIC_RULE}, not {shown(topic)}"
        raise Rejected("bad_topic", detail, "topic")
    return topic
