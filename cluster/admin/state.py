"""Administrative state: small items that every process of a deployment has a copy of, such as API keys.

A log defines the state (ADR 38). Each record in the log changes one item, and takes effect only if its version is one
above the item's. So if two changes are concurrent, the first one in the log wins, and the other caller gets an error.
From time to time a record contains a snapshot of all items, so that earlier records can be dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import orjson

from duemq.model.errors import CorruptStore, Rejected
from duemq.model.messages.record import StoredRecord, pack_record, unpack_record

MAX_ITEM_BYTES: Final = 8 << 10
MAX_BYTES: Final = 512 << 10  # of all items, because a snapshot must fit into one record of any log
RESERVE_BYTES: Final = 64 << 10  # part of `MAX_BYTES`, reserved for keys, sessions and jobs
MAX_CREDENTIALS_BYTES: Final = 256 << 10  # the part of `MAX_BYTES` that credentials may use
MAX_REMOVED: Final = 500  # how many removed items' versions are kept

_FORMAT = 1
_IN_RESERVE: Final = frozenset(("keys", "sessions", "jobs"))

log = logging.getLogger(__name__)

T = TypeVar("T")

Value = Mapping[str, Any]


class Item(NamedTuple):
    """`version` counts the item's changes. If `value` is None, the item was removed."""

    version: int
    value: Value | None


class ItemChange(NamedTuple):
    """One change of an item. `version`: the version after the change, `at`: the time (epoch ms), `by`: the caller."""

    item: str
    version: int
    value: Value | None
    at: int
    by: str

    def frame(self) -> bytes:
        """The change as a record."""
        return pack_record(self.item.encode(), (), orjson.dumps({"format": _FORMAT, **self._asdict()}))


class AdminState:
    """The items after all records before `next_offset`, which are read in order from `start`, the first offset that is
    kept."""

    def __init__(self, start: int) -> None:
        self.items: dict[str, Item] = {}
        self.next_offset = self._start = start
        self.is_complete = start == 0
        """Whether the state is complete despite dropped records: the log was read from its first record, or a snapshot
        was read."""
        self.changed_kinds = set[str]()
        """The kinds of items that have changed, until the reader clears it."""
        self._behind: list[tuple[int, ItemChange]] = []  # changes that may be newer than a snapshot that comes later
        self._sizes: dict[str, int] = {}
        self._removed: dict[str, None] = {}  # names of removed items, earliest first
        self._floor = 0  # the highest version of a forgotten removed item; no item gets this version again

    def apply(self, record: StoredRecord) -> bool:
        """Apply the next record; return whether an item changed. Raises CorruptStore for an unknown record."""
        self.next_offset = record.offset + 1
        try:
            document = orjson.loads(unpack_record(record.frame).payload)
            if not isinstance(document, dict) or document.pop("format") != _FORMAT:
                raise ValueError("this version does not know its format")
            if "through" in document:
                through, floor = int(document["through"]), int(document.get("floor", 0))
                return self._apply_snapshot(through, floor, _items_of(document["items"]))
            change = ItemChange(
                *(document[name] for name in ItemChange._fields)
            )  # a newer version may have more fields
            if not isinstance(change.item, str) or not isinstance(change.value, dict | None):
                raise TypeError("it is not a change of an item")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"record {record.offset} of the administrative log cannot be read: {error}") from error
        if not self.is_complete:
            self._behind.append((record.offset, change))
            return False
        return self._apply_change(change)

    def _apply_change(self, change: ItemChange) -> bool:
        if change.version != self.version_of(change.item) + 1:
            return False
        self._put(change.item, Item(change.version, change.value))
        if len(self._removed) > MAX_REMOVED:
            self._forget(next(iter(self._removed)))
        return True

    def _put(self, name: str, item: Item) -> None:
        self._removed.pop(name, None)
        self.changed_kinds.add(name.partition("/")[0])
        if item.value is None:
            self.items.pop(name, None)  # moves the name to the end; a snapshot lists removed items in the same order
            self._removed[name] = None
        self.items[name] = item
        self._sizes[name] = len(orjson.dumps(item.value))

    def _forget(self, name: str) -> None:
        """Forget a removed item. New items start above the versions of all forgotten items, so that a change with an
        old version never takes effect."""
        self._floor = max(self._floor, self.items.pop(name).version)
        del self._removed[name], self._sizes[name]

    def _apply_snapshot(self, through: int, floor: int, items: Mapping[str, Item]) -> bool:
        # A slow writer's snapshot may be older than records that were already dropped.
        if self.is_complete or through + 1 < self._start:
            return False
        self.is_complete, self._floor = True, floor
        for name, item in items.items():
            self._put(name, item)
        for offset, change in self._behind:
            if offset > through:
                self._apply_change(change)
        self._behind.clear()
        return True

    def version_of(self, item: str) -> int:
        """The version that the next change must follow, also for unknown items (new or forgotten)."""
        return self.items[item].version if item in self.items else self._floor

    def of_kind(self, kind: str) -> Iterator[tuple[str, Value]]:
        """The items with names `kind/...` that were not removed: the rest of the name, and the value."""
        prefix = kind + "/"
        for name, item in self.items.items():
            if item.value is not None and name.startswith(prefix):
                yield name[len(prefix) :], item.value

    @property
    def size_bytes(self) -> int:
        return self._size_of("")

    def _size_of(self, kind: str) -> int:
        return sum(len(name) + size for name, size in self._sizes.items() if name.startswith(kind))

    def check_room(self, change: ItemChange) -> None:
        """Raises Rejected `bad_field` if there is no room for a change. There is always room for a change that does not
        make the item larger."""
        size, before = len(orjson.dumps(change.value)), self._sizes.get(change.item, -len(change.item))
        if change.value is None or size <= before:
            return
        if (frame_bytes := len(change.frame())) > MAX_ITEM_BYTES:
            raise Rejected("bad_field", f"{change.item} has {frame_bytes} bytes, and may have {MAX_ITEM_BYTES}")
        kind, more = change.item.partition("/")[0], size - before
        if kind == "credentials" and self._size_of("credentials/") + more > MAX_CREDENTIALS_BYTES:
            detail = f"credentials of all destinations may have {MAX_CREDENTIALS_BYTES:,} bytes together"
            raise Rejected("bad_field", detail, "credentials")
        if self.size_bytes + more > (most := MAX_BYTES if kind in _IN_RESERVE else MAX_BYTES - RESERVE_BYTES):
            raise Rejected("bad_field", f"keys and other administrative items may have {most:,} bytes in all")

    def snapshot(self) -> bytes:
        """A record with all current items, which makes all records before `next_offset` unnecessary."""
        items = {name: [item.version, item.value] for name, item in self.items.items()}
        document = {"format": _FORMAT, "through": self.next_offset - 1, "floor": self._floor, "items": items}
        return pack_record(b"snapshot", (), orjson.dumps(document))


def _items_of(document: Any) -> Mapping[str, Item]:
    """The items of a snapshot. Raises TypeError and ValueError if it is malformed."""
    if not isinstance(document, dict):
        raise TypeError("a snapshot has items")
    items = {name: Item(*pair[:2]) for name, pair in document.items()}
    if not all(isinstance(item.version, int) and isinstance(item.value, dict | None) for item in items.values()):
        raise TypeError("an item is a version and a value")
    return items


class ItemReader(Generic[T]):
    """Reads the items of one kind.

    `parse` raises KeyError, TypeError or ValueError for an item that it cannot read. Such an item was written by
    another version of duemq, and an unknown field in it may be a restriction, so the item is left out. `unreadable`:
    the names of such items.
    """

    def __init__(self, kind: str, parse: Callable[[Value], T]) -> None:
        self._kind, self._parse = kind, parse
        self._read: dict[str, tuple[Value, T | None]] = {}
        self.unreadable: frozenset[str] = frozenset()

    def read(self, state: AdminState) -> dict[str, T]:
        """The items, by their names after the kind."""
        before, self._read = self._read, {}
        for name, value in state.of_kind(self._kind):
            known = before.get(name)
            if known is None or known[0] is not value:  # parse only changed items: others may change every second
                known = value, self._parsed(name, value)
            self._read[name] = known
        self.unreadable = frozenset(name for name, (_, item) in self._read.items() if item is None)
        return {name: item for name, (_, item) in self._read.items() if item is not None}

    def _parsed(self, name: str, value: Value) -> T | None:
        try:
            return self._parse(value)
        except (KeyError, TypeError, ValueError):  # the error is not logged, because its text may contain secrets
            log.error(
                "%s/%s is left out: another version of duemq wrote it", self._kind, name,
                extra={"action": "admin.unreadable", "item": f"{self._kind}/{name}"},
            )  # fmt: skip
            return None
