"""Options for a RocketMQ cluster."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator

from duemq.model.destinations.template import LABEL, fill, parse_name

TOPIC_CHARACTERS: Final = 127
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+")
_TAG: Final = re.compile(r"[^|\x00-\x1f\x7f-\x9f]*")
NAMES: Final = ("topic",)
"""The placeholders in a topic."""


class RocketMqOptions(BaseModel):
    """`topic`: text in which `{{ topic }}` is replaced by the message's topic. `tag`: text, or `{{ label }}` for the
    first label of the message; empty = no tag. `fifo`: the topic has the type FIFO, and a message's key is its message
    group.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: Annotated[str, Field(min_length=1, max_length=TOPIC_CHARACTERS)] = "{{ topic }}"
    tag: Annotated[str, Field(max_length=128)] = "{{ label }}"
    fifo: StrictBool = False

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if not _TOPIC.fullmatch(fill(parse_name(topic, NAMES), dict.fromkeys(NAMES, "x"))):
            raise ValueError("it has characters of A-Z a-z 0-9 _ -, and the placeholder {{ topic }}")
        return topic

    @field_validator("tag")
    @classmethod
    def _check_tag(cls, tag: str) -> str:
        parts = parse_name(tag, ("label",))
        if LABEL in parts and len(parts) > 1:
            raise ValueError("it is text, or {{ label }} and nothing else")
        if LABEL not in parts and tag and not legal_tag(tag):
            raise ValueError("it has no | and no control characters, and more than spaces")
        return tag

    def check_url(self, url: str) -> None:
        """Check the URL of the cluster. Raises ValueError."""
        parts = urlsplit(url)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("a RocketMQ URL ends with the port of the proxy: topic and tag are options")
        if ":" in (parts.hostname or ""):
            raise ValueError("RocketMQ's client takes no IPv6 address: give a name")


def legal_tag(tag: str) -> bool:
    """Whether RocketMQ accepts the tag."""
    return bool(tag.strip() and _TAG.fullmatch(tag))
