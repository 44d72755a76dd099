"""The sections `[limits]`, `[timing]`, `[topics]`, `[proxy]` and `[console]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from duemq.cluster.topics.internal_topics import is_internal
from duemq.model.settings import (
    KIB,
    MIB,
    Delays,
    Duration,
    SettingsSection,
    Size,
    Switch,
    TopicPatterns,
    delays,
    duration,
)
from duemq.model.timing import CLASSIC_LEVELS
from duemq.model.topics.rules import TOPIC, TOPIC_FORM


class LimitSettings(SettingsSection):
    """Limits for producers."""

    max_delay: Annotated[Duration, Field(ge=1000, le=duration("1000y"))] = duration("10y")
    max_payload_bytes: Annotated[Size, Field(ge=1, le=64 * MIB)] = MIB
    max_headers: Annotated[int, Field(ge=0, le=1024)] = 64
    max_headers_bytes: Annotated[Size, Field(le=16 * MIB)] = 64 * KIB
    max_key_bytes: Annotated[Size, Field(le=60 * KIB)] = 32 * KIB
    max_batch_items: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_batch_bytes: Annotated[Size, Field(ge=KIB, le=1024 * MIB)] = 32 * MIB


class TimingSettings(SettingsSection):
    levels: Delays = delays(CLASSIC_LEVELS)
    past_due: Literal["deliver", "reject"] = "deliver"


class TopicSettings(SettingsSection):
    allowed: TopicPatterns = ()
    partitions: Annotated[int, Field(ge=0, le=1024)] = 1
    dead_letter: str = "duemq.dlq"
    purgeable: TopicPatterns = ()
    max_redrives: Annotated[int, Field(ge=0, le=65_535)] = 16

    @field_validator("dead_letter")
    @classmethod
    def _topic(cls, name: str) -> str:
        if not TOPIC.fullmatch(name):
            raise ValueError(f"a topic has {TOPIC_FORM}")
        if is_internal(name):
            raise ValueError("this topic is duemq's own")
        return name


class ProxySettings(SettingsSection):
    selection: Literal["by_key", "round_robin", "least_latency"] = "by_key"


class ConsoleSettings(SettingsSection):
    mask_payloads: Switch = True
    docs_url: Annotated[str, Field(max_length=500, pattern=r"^(https?://[!-~]+)?$")] = ""
