"""A session of the console. Its cookie has a random text; only the SHA-256 of it is ever stored, as of API keys.

So a session ends for all processes when it is removed, and nobody who reads the log can make one: a signed cookie could
not be taken back, and each process would have to know the secret that signs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from duemq.model.callers.access import Grant, Scope

COOKIE_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class Session(NamedTuple):
    """As it is stored. `origin`: its credential: `key:ID:SHA-256` of the text of a key, `settings:SHA-256` of a key
    of the settings, or `user:ISSUER`; then `scopes`, `topics` and `name` are those of the person, else they are the
    key's. Times are epoch ms."""

    sha256: str
    caller: str
    origin: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created_at: int
    expires_at: int
    name: str = ""

    def value(self) -> dict[str, Any]:
        """As an item of the administrative state."""
        return {field: value for field, value in self._asdict().items() if field != "name" or value}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Scopes that a newer version knows are left out."""
        known = frozenset(Scope)
        scopes = tuple(Scope(scope) for scope in value["scopes"] if scope in known)
        return cls(**{**value, "scopes": scopes, "topics": tuple(value["topics"])})

    def grant(self) -> Grant:
        """Of a person."""
        return Grant(self.caller, frozenset(self.scopes), topics=self.topics, name=self.name)


def new_session(
    caller: str, origin: str, now: int, expires_at: int, scopes: Sequence[Scope] = (), topics: Sequence[str] = (),
    name: str = "",
) -> tuple[Session, str]:  # fmt: skip
    """A session, and the text of its cookie."""
    text = secrets.token_urlsafe(32)
    return Session(digest_of(text), caller, origin, tuple(scopes), tuple(topics), now, expires_at, name), text


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def csrf_of(text: str) -> str:
    """What a form has to bring that belongs to the session with this cookie: a page of another site cannot know it."""
    return sha256(b"csrf:" + text.encode()).hexdigest()
