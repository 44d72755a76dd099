"""The shapes of administrators' requests, and of the responses to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duemq.model.callers.access import MAX_RATE, MAX_TOPICS
from duemq.proxy.api.schemas import Closed, Duration, Instant, Ms, Rfc3339, Shape

ScopeName = Literal["send", "read", "cancel", "operate", "admin"]


TopicPattern = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._*-]+$", examples=["orders.*"])]
Rate = Annotated[
    int, Field(ge=0, le=MAX_RATE, description="Messages and requests/s, per process; beyond it 429. 0: any.")
]


class KeyRequest(Closed):
    """Either scopes or a role. At most one of expires_at and expires_after; without either the key does not expire."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9 ._:@-]+$", examples=["shop"])
    scopes: list[ScopeName] = Field(default=[], min_length=1, max_length=16)
    role: Literal["viewer", "operator", "admin"] = Field(
        default="viewer", description="viewer: read; operator: send, read, cancel and operate; admin: everything."
    )
    topics: list[TopicPattern] = Field(
        default=[], max_length=MAX_TOPICS, description="Names or patterns of the only topics it is for. None: all."
    )
    rate: Rate = 0
    expires_at: Instant = 0
    expires_after: Duration = 0
    confirm: bool = Field(
        default=True,
        description="false: if the first key would refuse callers without one, it is not created, and the answer "
        "(`unconfirmed`) says how many requests there were without a key in the last minute.",
    )


class KeyRotation(Closed):
    overlap: Duration = Field(default="24h", description="How long the old text stays valid.")


class Key(Shape):
    id: str
    name: str
    scopes: list[ScopeName]
    topics: list[str]
    rate: Rate
    state: Literal["active", "expired", "revoked"]
    created_at: Rfc3339
    expires_at: Rfc3339 | None
    revoked_at: Rfc3339 | None


class NewKey(Key):
    key: str = Field(description="The text that a caller presents.", examples=["duemq_ab3k…_…_1f2e3d4c"])


class KeyList(Shape):
    keys: list[Key]


class TrailRecord(Shape):
    """`times`: how often the same request was denied within some seconds."""

    at: Rfc3339
    at_ms: Ms
    by: str = Field(description="The id of a key, user:ID (NAME), settings or data folder; empty: no key was required.")
    from_: str = Field(alias="from", description="The client's address.")
    action: str = Field(examples=["POST /v1/keys"])
    target: str = Field(description="The path.")
    result: int = Field(description="The HTTP status.")
    code: str = Field(description="Of the problem; empty after success.")
    request_id: str
    times: int


class TrailPage(Shape):
    entries: list[TrailRecord]
    cursor: str | None
