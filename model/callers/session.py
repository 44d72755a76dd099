"""A session of the console. Its cookie has a random text; as with API keys, only its SHA-256 is stored.

Removing a session ends it for all processes, and reading the log is not enough to forge one. A signed cookie could not
be revoked, and each process would need the signing secret.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from duemq.model.callers.access import Grant, Scope

COOKIE_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class LoginSession(NamedTuple):
    """A stored session. `origin`: its credential: `key:ID:SHA-256` of a key's text, `settings:SHA-256` of a key from
    the settings, or `user:ISSUER`. `scopes`, `topics` and `name` are the person's for a user, else the key's. Times are
    epoch ms."""

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
        """Scopes from a newer version are left out."""
        known = frozenset(Scope)
        scopes = tuple(Scope(scope) for scope in value["scopes"] if scope in known)
        return cls(**{**value, "scopes": scopes, "topics": tuple(value["topics"])})

    def grant(self) -> Grant:
        """Of a person."""
        return Grant(self.caller, frozenset(self.scopes), topics=self.topics, name=self.name)


def new_session(
    caller: str, origin: str, now: int, expires_at: int, scopes: Sequence[Scope] = (), topics: Sequence[str] = (),
    name: str = "",
) -> tuple[LoginSession, str]:  # fmt: skip
    """A session, and the text of its cookie."""
    text = secrets.token_urlsafe(32)
    return LoginSession(digest_of(text), caller, origin, tuple(scopes), tuple(topics), now, expires_at, name), text


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def csrf_of(text: str) -> str:
    """The CSRF token of forms for the session with this cookie: a page of another site cannot know it."""
    return sha256(b"csrf:" + text.encode()).hexdigest()
