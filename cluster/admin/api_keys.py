"""API keys as administrative state, one item per key. Revoked and expired keys are kept for a month."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from duemq.cluster.admin.keyless_requests import KeylessRequests
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.state import MAX_BYTES, RESERVE_BYTES, ItemReader
from duemq.model.callers.access import ROLES, ApiKey, Scope, is_key_id, new_key, rotated
from duemq.model.errors import Rejected
from duemq.model.timing import format_ms, instant_after, parse_duration, parse_instant, shown

DEFAULT_OVERLAP_MS: Final = 24 * 3600 * 1000
MAX_KEYS: Final = 1_000  # including revoked keys
KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""How long a revoked or expired key is kept, unless room is needed."""
_SHOWN: Final = 10  # how many ids an error lists for one name
_FORGET_MOST: Final = 20  # per new key, because each removal is a record in the log

_KIND = "keys"
_NEW_FIELDS = ("name", "scopes", "role", "topics", "rate", "expires_at", "expires_after", "confirm")


class ApiKeys:
    """`by_id` contains all keys. `by` is the caller of a change. `clock` returns epoch ms.

    `asked_for`: whether the settings require a key even if there are no keys here.
    """

    def __init__(self, admin: AdminLog, clock: Callable[[], int]) -> None:
        self.admin, self._clock = admin, clock
        self.by_id: dict[str, ApiKey] = {}
        self._reader = ItemReader(_KIND, ApiKey.from_value)
        self.asked_for, self.keyless = False, KeylessRequests()
        admin.on_change(self._on_change, _KIND)

    def _on_change(self) -> None:
        self.by_id = self._reader.read(self.admin.state)

    @property
    def count(self) -> int:
        """The number of all keys, including keys that only another version of duemq can read."""
        return len(self.by_id) + len(self._reader.unreadable)

    @property
    def would_close(self) -> bool:
        """Whether a new key would be the first one, so that callers without a key would be refused from then on."""
        return not (self.asked_for or self.count or self.admin.keys_are_lost)

    def why_ended(self, caller: str) -> str:
        """Why a caller (`Grant.caller`) has lost its access, in a sentence. Empty if it has access, or is not a key in
        this log: the access of people is decided by their identity provider."""
        key = self.by_id.get(caller)
        if key is not None and (state := key.state(self._clock())) != "active":
            return f"key {key.name} ({key.id}) {'was' if state == 'revoked' else 'has'} {state}"
        if key is None and is_key_id(caller) and caller not in self._reader.unreadable:
            return f"key {caller} does not exist any more"
        return ""

    def described(self) -> list[dict[str, Any]]:
        """The public fields of each key, oldest first."""
        keys = sorted(self.by_id.values(), key=lambda key: (key.created_at, key.id))
        return [self._described(key) for key in keys]

    async def make(self, fields: Mapping[str, Any], by: str, *, checked: bool = False) -> dict[str, Any]:
        """Create a key, which is valid here when this returns. Returns its public fields, and its text as `key`.

        `fields`: `name`; either `scopes` or `role`; optionally `topics` and `rate`; at most one of `expires_at` and
        `expires_after`; and `confirm`, which, if false, refuses the first key if callers without a key would lose
        access. `checked`: the first key must be an admin's. Raises Rejected, and the errors of `AdminLog.change`.
        """
        if unknown := sorted(fields.keys() - set(_NEW_FIELDS)):
            raise Rejected("unknown_field", f"{shown(unknown[0])} is not a field of a key", unknown[0])
        name, rate, now = fields.get("name"), fields.get("rate", 0), self._clock()
        if type(fields.get("confirm", True)) is not bool:
            raise Rejected("bad_field", f"confirm is true or false, not {shown(fields['confirm'])}", "confirm")
        if type(name) is not str:
            raise Rejected("bad_field", f"name must be text, not {shown(name)}", "name")
        if type(rate) is not int:
            raise Rejected("bad_field", f"rate must be a whole number of messages/s, not {shown(rate)}", "rate")
        scopes, topics = _scopes_in(fields), _texts(fields.get("topics", []), "topics")
        key, text = new_key(name, scopes, now, _expiry_of(fields, now), topics=topics, rate=rate)
        if checked and self.would_close:
            self._check_first(key, fields.get("confirm", True), now)
        await self.forget(now, by)
        if self.count >= MAX_KEYS:
            raise Rejected("not_supported", f"there are {MAX_KEYS} keys, including revoked ones, which is the limit")
        await self.admin.change(f"{_KIND}/{key.id}", key.value(), by)
        return self._described(key) | {"key": text}

    async def rotate(self, id_: str, overlap_ms: int, by: str) -> dict[str, Any]:
        """Give a key a new text; the result is like that of `make`. The old text stays valid for `overlap_ms`."""
        key, version = self._find(id_)
        key, text = rotated(key, self._clock(), overlap_ms)
        await self.admin.change(f"{_KIND}/{key.id}", key.value(), by, version)
        return self._described(key) | {"key": text}

    async def revoke(self, id_: str, by: str) -> dict[str, Any]:
        key, version = self._find(id_)
        if key.revoked_at is None:
            key = key._replace(revoked_at=self._clock())
            await self.admin.change(f"{_KIND}/{key.id}", key.value(), by, version, always=True)
        return self._described(key)

    async def forget(self, now: int, by: str) -> None:
        """Remove keys that were revoked or expired long ago or, if room is needed, any such keys. Never removes the
        last key, because without keys every caller has access."""
        full = self.count >= MAX_KEYS or self.admin.state.size_bytes > MAX_BYTES - RESERVE_BYTES
        ended = sorted((key.ended_at(now), key.id) for key in self.by_id.values() if key.state(now) != "active")
        gone = [id_ for at, id_ in ended if full or at < now - KEPT_MS]
        for id_ in gone[: min(_FORGET_MOST, self.count - 1)]:
            try:
                await self.admin.change(f"{_KIND}/{id_}", None, by, self._find(id_)[1])
            except Rejected as error:
                if error.code not in ("conflict", "unknown_key"):  # another process may have removed the key
                    raise
                return

    def _check_first(self, key: ApiKey, confirm: bool, now: int) -> None:
        if Scope.ADMIN not in key.scopes:
            raise Rejected(
                "needs_admin",
                "the first key must be an admin's: from then on callers without a key are refused, and only an admin "
                "can make more keys",
                "scopes",
            )
        if not confirm:
            count = self.keyless.count(now)
            raise Rejected(
                "unconfirmed",
                f"with the first key callers without one are refused. This process served {count:,} requests without "
                "a key in the last minute",
                "confirm", keyless_requests=count,
            )  # fmt: skip

    def named(self, text: str) -> ApiKey:
        """The key with this id, or else with this name; active keys are preferred. Raises Rejected `unknown_key`, and
        `bad_field` if several keys have the name."""
        if (key := self.by_id.get(text)) is not None:
            return key
        named = [key for key in self.by_id.values() if key.name == text]
        keys = [key for key in named if key.state(self._clock()) == "active"] or named
        if not keys:
            raise Rejected("unknown_key", f"there is no key {shown(text)}", "id")
        if len(keys) > 1:
            ids = ", ".join(sorted(key.id for key in keys)[:_SHOWN])
            raise Rejected("bad_field", f"{len(keys)} keys are named {shown(text)}: give the id ({ids})", "id")
        return keys[0]

    def _find(self, id_: str) -> tuple[ApiKey, int]:
        """The key, and the version of its item."""
        key = self.named(id_)
        return key, self.admin.state.version_of(f"{_KIND}/{key.id}")

    def _described(self, key: ApiKey) -> dict[str, Any]:
        return {
            "id": key.id, "name": key.name, "scopes": list(key.scopes), "topics": list(key.topics), "rate": key.rate,
            "state": key.state(self._clock()),
            "created_at": format_ms(key.created_at), "expires_at": _text(key.expires_at),
            "revoked_at": _text(key.revoked_at),
        }  # fmt: skip


def _scopes_in(fields: Mapping[str, Any]) -> Sequence[str]:
    if "role" not in fields:
        return _texts(fields.get("scopes"), "scopes")
    role = fields["role"]
    if "scopes" in fields:
        raise Rejected("bad_field", "scopes and role are both given: a role stands for its scopes", "role")
    if type(role) is not str or role not in ROLES:
        raise Rejected("bad_field", f"{shown(role)} is not a role: there are {', '.join(ROLES)}", "role")
    return ROLES[role]


def _texts(value: Any, field: str) -> list[str]:
    if type(value) is not list or not all(type(text) is str for text in value):
        raise Rejected("bad_field", f"{field} must be a list of texts, not {shown(value)}", field)
    return value


def _expiry_of(fields: Mapping[str, Any], now: int) -> int | None:
    if "expires_at" in fields and "expires_after" in fields:
        raise Rejected("both_times", "expires_at and expires_after are both given", "expires_after")
    if "expires_at" in fields:
        return parse_instant(fields["expires_at"], "expires_at")
    if "expires_after" in fields:
        return instant_after(now, parse_duration(fields["expires_after"], "expires_after"), "expires_after")
    return None


def _text(ms: int | None) -> str | None:
    return None if ms is None else format_ms(ms)
