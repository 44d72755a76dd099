"""API keys and what they allow. A key is `duemq_<id>_<secret>_<crc>`; only its SHA-256 is ever stored.

With the checksum, a mistyped or truncated key is distinguished from a wrong key without a lookup, and secret scanners
find leaked keys without false alarms.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from duemq.model.callers.caller import PERSON, SETTINGS
from duemq.model.errors import Rejected
from duemq.model.timing import instant_after, shown
from duemq.model.topics.topic_patterns import topic_matcher

_KEY = re.compile(rb"duemq_([a-z0-9]{12})_([0-9a-f]{48})_([0-9a-f]{8})")
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_CHARACTERS: Final = 12
_NAME = re.compile(r"[A-Za-z0-9 ._:@-]{1,100}")
_TOPICS = re.compile(r"[A-Za-z0-9._*-]{1,249}")

MAX_TOPICS: Final = 20  # topics and patterns of one key
MAX_RATE: Final = 1_000_000  # messages or requests/s


class Scope(StrEnum):
    """What a caller may do."""

    SEND = "send"  # schedule messages
    READ = "read"  # look up messages and topics, and read topics
    CONSUME = "consume"  # store the cursors of consumers; `operate` includes this
    CANCEL = "cancel"  # cancel, move and deliver now
    OPERATE = "operate"  # redrive dead letters, drain nodes
    ADMIN = "admin"  # everything, including API keys


ROLES: Final[Mapping[str, tuple[Scope, ...]]] = {
    "viewer": (Scope.READ,),
    "operator": (Scope.SEND, Scope.READ, Scope.CANCEL, Scope.OPERATE),
    "admin": (Scope.ADMIN,),
}
"""The scopes of each role."""


class Grant(NamedTuple):
    """What the caller of one request may do. `caller`: a key's id, or `user:ID` for a person; empty for a key from the
    settings (which is in `secret`) and if no key is required. `topics`: patterns such as `orders.*`; none = all topics.
    `rate`: messages and requests/s; 0 = any. `name`: the name of the key or the person."""

    caller: str
    scopes: frozenset[Scope]
    secret: bytes = b""
    topics: tuple[str, ...] = ()
    rate: int = 0
    name: str = ""

    def __repr__(self) -> str:
        return f"Grant({self.caller!r}, {sorted(self.scopes)}, topics={self.topics})"

    @property
    def by(self) -> str:
        """The caller as a message records it (`model/callers/caller.py`); empty if no key is required."""
        return f"key:{self.name}" if self.caller and not self.is_person else self.account

    @property
    def account(self) -> str:
        """The caller as the trail records it: the id of a key, `user:ID (NAME)`, `settings`; else empty."""
        if self.is_person and self.name:
            return f"{self.caller} ({self.name})"
        return self.caller or (SETTINGS if self.secret else "")

    @property
    def is_person(self) -> bool:
        return self.caller.startswith(PERSON)

    @property
    def namespace(self) -> str:
        """The caller, if it may use only some topics and so has a name space to itself; else empty."""
        return self.caller if self.topics else ""

    def allows(self, scope: Scope) -> bool:
        more = Scope.OPERATE if scope is Scope.CONSUME else Scope.ADMIN
        return scope in self.scopes or Scope.ADMIN in self.scopes or more in self.scopes

    def covers(self, topic: str) -> bool:
        return not self.topics or topic_matcher(self.topics)(topic) is not None

    def covers_all(self, prefix: str) -> bool:
        """Whether the grant covers all topics with this prefix."""
        open_ended = tuple(pattern for pattern in self.topics if pattern.endswith("*"))
        return not self.topics or (bool(open_ended) and topic_matcher(open_ended)(prefix) is not None)


EVERYTHING: Final = Grant("", frozenset((Scope.ADMIN,)))
NOTHING: Final = Grant("", frozenset())


class Secret(NamedTuple):
    """One of a key's secrets: the SHA-256 (hex) of the key's text with it, and when it expires (epoch ms); None: when
    the key does."""

    sha256: str
    until: int | None


class ApiKey(NamedTuple):
    """A stored key. All times are epoch ms; `expires_at` None: never; `revoked_at` None: not revoked."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    secrets: tuple[Secret, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    topics: tuple[str, ...] = ()
    rate: int = 0

    def opened_by(self, presented: bytes, now: int) -> bool:
        """Whether the caller presented this key, and it is active at `now`. Runs in constant time."""
        return self.is_opened_by(sha256(presented).hexdigest(), now)

    def is_opened_by(self, digest: str, now: int) -> bool:
        """See `opened_by`; `digest` is the SHA-256 (hex) of the presented text."""
        fits = [compare_digest(digest, secret.sha256) and _is_before(now, secret.until) for secret in self.secrets]
        return any(fits) and self.revoked_at is None and _is_before(now, self.expires_at)

    def end_of(self, digest: str) -> int | None:
        """When the secret with this SHA-256 (hex) expires (epoch ms); None if unknown."""
        ends = (self.expires_at, *(secret.until for secret in self.secrets if secret.sha256 == digest))
        return min((end for end in ends if end is not None), default=None)

    def state(self, now: int) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if _is_before(now, self.expires_at) else "expired"

    def ended_at(self, now: int) -> int:
        """When an inactive key ended (epoch ms)."""
        return min(end for end in (self.revoked_at, self.expires_at, now) if end is not None)

    def value(self) -> dict[str, Any]:
        """The key as an item of the administrative state."""
        return self._asdict() | {"secrets": [list(secret) for secret in self.secrets]}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """The key in an item. Scopes from a newer version are left out: they allow nothing here."""
        known = frozenset(Scope)
        scopes = tuple(Scope(scope) for scope in value["scopes"] if scope in known)
        lists = {"scopes": scopes, "secrets": tuple(Secret(*secret) for secret in value["secrets"])}
        return cls(**{**value, **lists, "topics": tuple(value.get("topics", ()))})

    def grant(self) -> Grant:
        return Grant(self.id, frozenset(self.scopes), topics=self.topics, rate=self.rate, name=self.name)


def _is_before(now: int, until: int | None) -> bool:
    return until is None or now < until


def new_key(
    name: str,
    scopes: Sequence[str],
    now: int,
    expires_at: int | None = None,
    *,
    topics: Sequence[str] = (),
    rate: int = 0,
) -> tuple[ApiKey, str]:
    """A new key and its text, which cannot be shown again. Raises Rejected `bad_field`."""
    if not _NAME.fullmatch(name):
        detail = f"a key's name has 1 to 100 letters, digits, blanks or . _ : @ -, not {shown(name)}"
        raise Rejected("bad_field", detail, "name")
    if expires_at is not None and expires_at <= now:
        raise Rejected("bad_field", "a key cannot have expired before it is made", "expires_at")
    if not 0 <= rate <= MAX_RATE:
        raise Rejected("bad_field", f"rate is 0 (any) to {MAX_RATE:,} messages/s, not {shown(rate)}", "rate")
    allowed = scopes_of(scopes)
    check_topics(topics, allowed)
    id_ = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_CHARACTERS))
    text, secret = _new_secret(id_)
    return ApiKey(id_, name, allowed, (secret,), now, expires_at, None, tuple(topics), rate), text


def check_topics(topics: Sequence[str], scopes: Sequence[Scope]) -> None:
    """Check the topics of a key. Raises Rejected `bad_field`."""
    if len(topics) > MAX_TOPICS:
        raise Rejected("bad_field", f"a key names at most {MAX_TOPICS} topics or patterns, not {len(topics)}", "topics")
    for topic in topics:
        if not _TOPICS.fullmatch(topic):
            raise Rejected("bad_field", f"{shown(topic)} is neither a topic nor a pattern such as orders.*", "topics")
    if topics and Scope.ADMIN in scopes:
        raise Rejected("bad_field", "the scope admin is for all topics: leave out either", "topics")


def scopes_of(names: Sequence[str]) -> tuple[Scope, ...]:
    """The scopes with these names. Raises Rejected `bad_field`."""
    known = ", ".join(Scope)
    if not names:
        raise Rejected("bad_field", f"a key has one scope or more of {known}", "scopes")
    for name in names:
        if name not in frozenset(Scope):
            raise Rejected("bad_field", f"{shown(name)} is no scope: there are {known}", "scopes")
    return tuple(scope for scope in Scope if scope in names)


def rotated(key: ApiKey, now: int, overlap_ms: int) -> tuple[ApiKey, str]:
    """The key with a new secret, and its new text. The old secret stays valid for `overlap_ms`; secrets from earlier
    rotations do not. Raises Rejected `bad_field` and `bad_time`."""
    if key.state(now) != "active":
        raise Rejected("bad_field", f"key {key.id} is {key.state(now)}: make a new one", "id")
    text, secret = _new_secret(key.id)
    newest = key.secrets[0]
    until = instant_after(now, overlap_ms, "overlap")
    return key._replace(secrets=(secret, newest._replace(until=until))), text


def id_of(presented: bytes) -> str | None:
    """The id in a text that may be a key; None if the text cannot be a key: it is mistyped, truncated or something
    else."""
    match = _KEY.fullmatch(presented)
    if match is None or crc32(presented[:-9]) != int(match[3], 16):
        return None
    return match[1].decode()


def is_key_id(text: str) -> bool:
    return len(text) == _ID_CHARACTERS and set(text) <= set(_ID_LETTERS)


def _new_secret(id_: str) -> tuple[str, Secret]:
    text = f"duemq_{id_}_{secrets.token_hex(24)}"
    text = f"{text}_{crc32(text.encode()):08x}"
    return text, Secret(sha256(text.encode()).hexdigest(), None)
