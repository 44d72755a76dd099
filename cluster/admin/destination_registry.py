"""Destinations beyond the log as administrative state: `destinations/NAME` is a declaration, `credentials/NAME` its
credentials.

Credentials are bound to the scheme, host and port that they were given for. A destination whose URL names another
server is disabled until they are given again: a secret never reaches another server, and no message is sent unsigned
while both change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final
from urllib.parse import urlsplit

from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.state import ItemReader, Value
from duemq.model.destinations.destination import (
    Credentials,
    Destination,
    System,
    read_credentials,
    read_destination,
)
from duemq.model.destinations.pull import MAX_GROUPS, MAX_GROUPS_OF_TOPIC
from duemq.model.errors import Rejected
from duemq.model.timing import shown

MAX_DESTINATIONS: Final = 200
FIELDS: Final = ("url", "topics", "rate", "concurrency", "timeout", "ordered", "retry", "options")
"""The fields of a declaration that its owner may change; pausing and disabling are separate calls."""

_KIND, _SECRETS = "destinations", "credentials"
_MISPLACED: Final = "its credentials are for another scheme, host or port: give them again"
_NOT_KNOWN: Final = "another version of duemq has its credentials: give them again"
_MAX_REASON: Final = 500  # characters
_TRIES: Final = 10  # a relay that disables a destination may interfere

Begin = Callable[[Destination, Sequence[str]], Awaitable[None]]
"""Called with new topics of a destination before they take effect: sets its group's start in them."""


def _start_id(now: int, instance: str = "") -> str:
    """A new start id. `now`: epoch ms (`Destination.began_at`). `instance`: of the destination; empty for a new one."""
    return f"{instance or token_hex(8)}.{now:x}-{token_hex(8)}"


async def begin_nowhere(destination: Destination, topics: Sequence[str]) -> None:
    """For processes that keep no positions."""


class DestinationRegistry:
    """`by_name` has all that this version can read. `by` is the caller of a change.

    Changes raise the errors of `AdminLog.change`, and Rejected `unknown_destination` for an undeclared name.
    """

    def __init__(self, admin: AdminLog) -> None:
        self.admin = admin
        self.by_name: dict[str, Destination] = {}
        self._declared: dict[str, Destination] = {}  # as in the log
        self._credentials: dict[str, Credentials] = {}
        self._declarations = ItemReader(_KIND, Destination.model_validate)
        self._secrets = ItemReader(_SECRETS, _parse_secrets)
        admin.on_change(self._on_change)

    def _on_change(self) -> None:
        self._declared = self._declarations.read(self.admin.state)
        secrets = self._secrets.read(self.admin.state)
        self._credentials, self.by_name = {}, {}
        for name, destination in self._declared.items():
            place, credentials = secrets.get(name, ("", Credentials()))
            trouble = ""
            if name in self._secrets.unreadable:
                trouble = _NOT_KNOWN
            elif credentials.names and place != _place(destination.url):
                trouble, credentials = _MISPLACED, Credentials()
            self.by_name[name] = destination.model_copy(update={"disabled": trouble}) if trouble else destination
            self._credentials[name] = credentials

    def listed(self) -> list[Destination]:
        """All, by name."""
        return [self.by_name[name] for name in sorted(self.by_name)]

    def find(self, name: str) -> Destination:
        """Raises Rejected `unknown_destination`."""
        if (destination := self.by_name.get(name)) is None:
            raise _unknown(name)
        return destination

    def credentials_of(self, name: str) -> Credentials:
        """Empty if there are none."""
        return self._credentials.get(name, Credentials())

    def version_of(self, name: str) -> tuple[int, int]:
        """The versions of the declaration and of the credentials: either one changes with each change."""
        state = self.admin.state
        return state.version_of(f"{_KIND}/{name}"), state.version_of(f"{_SECRETS}/{name}")

    async def declare(
        self,
        fields: Mapping[str, Any],
        credentials: Mapping[str, Any] | None,
        by: str,
        *,
        replace: bool = False,
        begin: Begin = begin_nowhere,
    ) -> Destination:
        """Declare a destination. `fields`: those of `Destination`. With `replace`, it may replace one of the same name,
        which keeps its credentials unless new ones are given, and stays paused.

        Raises Rejected `bad_field`, `unknown_field`, `destination_exists`, `too_many_destinations` or
        `too_many_groups`.
        """
        destination = read_destination(fields)
        secrets = None if credentials is None else read_credentials(credentials)
        name = destination.name
        version, secret_version = self.version_of(name)
        if self._has(f"{_KIND}/{name}"):
            if not replace:
                detail = f"destination {name} exists: `replace` (--replace) replaces it"
                raise Rejected("destination_exists", detail, "name")
            before = self._declared.get(name)
            if before is not None and "paused" not in fields:
                destination = destination.model_copy(update={"paused": before.paused})
            await self._change(before, destination, secrets, by, begin)
            return destination
        self._check_number(destination)
        await begin(destination, (destination.own_topic, destination.retry_topic, *destination.topics))
        destination = destination.model_copy(update={"start_id": _start_id(self.admin.clock())})
        # Always, so that of two concurrent declarations of a name, one fails before it has done anything.
        await self._put_credentials(destination, secrets or Credentials(), by, secret_version)
        await self._put(destination, by, version)
        return destination

    def _check_number(self, destination: Destination) -> None:
        """Raises Rejected if there are as many destinations or groups as can be."""
        is_group = destination.system is System.PULL
        names = [name for name, _ in self.admin.state.of_kind(_KIND) if ("." in name) is is_group]
        if not is_group:
            if len(names) >= MAX_DESTINATIONS:
                detail = f"there are {MAX_DESTINATIONS} destinations, which is the limit"
                raise Rejected("too_many_destinations", detail)
            return
        (topic,) = destination.topics
        of_topic = sum(name.rpartition(".")[0] == topic for name in names)
        if of_topic >= MAX_GROUPS_OF_TOPIC or len(names) >= MAX_GROUPS:
            detail = f"there are {of_topic} groups of topic {topic}, {len(names)} in all"
            raise Rejected("too_many_groups", f"{detail}; the limits are {MAX_GROUPS_OF_TOPIC} and {MAX_GROUPS}")

    async def update(
        self,
        name: str,
        changes: Mapping[str, Any],
        by: str,
        credentials: Mapping[str, Any] | None = None,
        *,
        begin: Begin = begin_nowhere,
    ) -> Destination:
        """Change fields of `FIELDS`, each as a whole, and the credentials, all of them. None: unchanged.

        Raises Rejected `bad_field` or `unknown_field`; also if credentials would go to a server that they were not
        given for.
        """
        before = self._find_declared(name)
        if unknown := sorted(changes.keys() - set(FIELDS)):
            raise Rejected("unknown_field", f"{shown(unknown[0])} cannot be changed here", unknown[0])
        fields = before.value() | dict(changes)
        after = read_destination({"name": name, "url": fields["url"], "topics": fields["topics"]})
        if after.system is not before.system and "options" not in changes:
            del fields["options"]  # of another system
        after = read_destination(fields)
        await self._change(before, after, None if credentials is None else read_credentials(credentials), by, begin)
        return after

    async def _change(
        self, before: Destination | None, after: Destination, secrets: Credentials | None, by: str, begin: Begin
    ) -> None:
        name = after.name
        version, secret_version = self.version_of(name)
        moved = before is None or _place(before.url) != _place(after.url)
        if moved and secrets is None and self.credentials_of(name).names:
            detail = "the credentials were given for another scheme, host or port: give them again, or {} for none"
            raise Rejected("bad_field", detail, "credentials")
        bound = before.topics if before is not None else ()
        if topics := [topic for topic in after.topics if topic not in bound]:
            await begin(after, topics)
        start_id = before.start_id if before is not None else ""
        if topics or not start_id:
            start_id = _start_id(self.admin.clock(), before.instance if before is not None else "")
        after = after.model_copy(update={"start_id": start_id})
        # Whichever is first, the destination counts as disabled between the two.
        if secrets is not None and secrets.names:
            await self._put_credentials(after, secrets, by, secret_version)
        if before != after:
            await self._put(after, by, version)
        if secrets is not None and not secrets.names:
            await self._put_credentials(after, secrets, by, secret_version)

    async def pause(self, name: str, by: str) -> Destination:
        return await self._set(name, by, paused=True)

    async def resume(self, name: str, by: str) -> Destination:
        """Send again, also if it was disabled."""
        return await self._set(name, by, paused=False, disabled="")

    async def disable(self, name: str, reason: str, by: str) -> Destination:
        """Stop sending, because the other side refuses messages. `reason`: a sentence."""
        return await self._set(name, by, disabled=reason[:_MAX_REASON] or "the other side refuses messages")

    async def _set(self, name: str, by: str, **changes: Any) -> Destination:
        """Set fields that no other caller changes. A repeat does no harm."""
        for _ in range(_TRIES):
            before = self._find_declared(name)
            after = before.model_copy(update=changes)
            try:
                if after != before:
                    await self._put(after, by, self.version_of(name)[0], always=True)
                return self.by_name.get(name, after)
            except Rejected as error:
                if error.code != "conflict":
                    raise
        raise Rejected("conflict", f"destination {name} was changed by others repeatedly")

    async def remove(self, name: str, by: str) -> None:
        """Remove a declaration and its credentials, even if this version cannot read it."""
        if not self._has(f"{_KIND}/{name}"):
            raise _unknown(name)
        version, secret_version = self.version_of(name)
        await self.admin.change(f"{_KIND}/{name}", None, by, version)
        try:
            await self.admin.change(f"{_SECRETS}/{name}", None, by, secret_version)
        except Rejected as error:
            if error.code != "conflict":  # it was declared again
                raise

    def _find_declared(self, name: str) -> Destination:
        if (destination := self._declared.get(name)) is None:
            raise _unknown(name)
        return destination

    def _has(self, item: str) -> bool:
        stored = self.admin.state.items.get(item)
        return stored is not None and stored.value is not None

    async def _put(self, destination: Destination, by: str, version: int, *, always: bool = False) -> None:
        await self.admin.change(f"{_KIND}/{destination.name}", destination.value(), by, version, always=always)

    async def _put_credentials(self, destination: Destination, credentials: Credentials, by: str, version: int) -> None:
        value = {"place": _place(destination.url), "values": credentials.value()}
        await self.admin.change(f"{_SECRETS}/{destination.name}", value, by, version)


def _parse_secrets(value: Value) -> tuple[str, Credentials]:
    """The server that they are for, and the credentials."""
    return str(value["place"]), Credentials.model_validate(value["values"])


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or ''}"


def _unknown(name: str) -> Rejected:
    return Rejected("unknown_destination", f"there is no destination {shown(name)}", "name")
