"""A session of the console. Its cookie is a random text; as with API keys, only the SHA-256 is stored.

When a session is removed, it ends in all processes, and reading the log is not enough to forge a session. A signed
cookie could not be revoked, and each process would need the secret that signs it.
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
    """A stored session. `origin`: the credential that it began with: `key:ID:SHA-256` with the SHA-256 of a key's text,
    `settings:SHA-256` with that of a key from the settings, or `user:ISSUER`. `scopes`, `topics` and `name` are those
    of the person, or else of the key. Times are epoch ms."""

    sha256: str
    caller: str
    origin: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created_at: int
    expires_at: int
    name: str = ""

    def value(self) -> dict[str, Any]:
        """The session as an item of the administrative state."""
        return {field: value for field, value in self._asdict().items() if field != "name" or value}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """The session in an item. Scopes from a newer version are left out."""
        known = frozenset(Scope)
        scopes = tuple(Scope(scope) for scope in value["scopes"] if scope in known)
        return cls(**{**value, "scopes": scopes, "topics": tuple(value["topics"])})

    def grant(self) -> Grant:
        """The grant of the session of a person."""
        return Grant(self.caller, frozenset(self.scopes), topics=self.topics, name=self.name)


def new_session(
    caller: str, origin: str, now: int, expires_at: int, scopes: Sequence[Scope] = (), topics: Sequence[str] = (),
    name: str = "",
) -> tuple[LoginSession, str]:  # fmt: skip
    """A new session, and the text of its cookie."""
    text = secrets.token_urlsafe(32)
    return LoginSession(digest_of(text), caller, origin, tuple(scopes), tuple(topics), now, expires_at, name), text


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def csrf_of(text: str) -> str:
    """The CSRF token for forms in the session with this cookie. A page of another site cannot know it."""
    return sha256(b"csrf:" + text.encode()).hexdigest()
