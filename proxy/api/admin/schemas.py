"""The shapes of what administrators send and get."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duemq.proxy.api.schemas import Closed, Duration, Instant, Rfc3339, Shape

ScopeName = Literal["send", "read", "cancel", "operate", "admin"]


class KeyRequest(Closed):
    """At most one of expires_at and expires_after; without either the key does not expire."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9 ._:@-]+$", examples=["shop"])
    scopes: list[ScopeName] = Field(min_length=1, max_length=16)
    expires_at: Instant = 0
    expires_after: Duration = 0


class KeyRotation(Closed):
    overlap: Duration = Field(default="24h", description="How long the old text is good still.")


class Key(Shape):
    id: str
    name: str
    scopes: list[ScopeName]
    state: Literal["active", "expired", "revoked"]
    created_at: Rfc3339
    expires_at: Rfc3339 | None
    revoked_at: Rfc3339 | None


class NewKey(Key):
    key: str = Field(description="The text that a caller presents.", examples=["duemq_ab3k…_…_1f2e3d4c"])


class KeyList(Shape):
    keys: list[Key]
