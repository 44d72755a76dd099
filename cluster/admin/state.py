"""Administrative state: small items that every process of a deployment knows, such as its API keys.

A log defines it (ADR 38). A record of the log changes one item, and counts only if its version follows the item's: of
two concurrent changes, the first in the log wins, and the other caller learns it. From time to time a record holds a
snapshot of all items, so that earlier records can be dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import orjson

from duemq.model.errors import CorruptStore, Rejected
from duemq.model.messages.record import StoredRecord, pack_record, unpack_record

MAX_ITEM_BYTES: Final = 8 << 10
MAX_BYTES: Final = 512 << 10  # of all items: a snapshot must fit into one record of any log
RESERVE_BYTES: Final = 64 << 10  # of these, for keys, sessions and jobs alone
MAX_CREDENTIALS_BYTES: Final = 256 << 10  # of these, for credentials at most
MAX_REMOVED: Final = 500  # removed items whose versions are kept

_FORMAT = 1
_IN_RESERVE: Final = frozenset(("keys", "sessions", "jobs"))

log = logging.getLogger(__name__)

T = TypeVar("T")

Value = Mapping[str, Any]


class Item(NamedTuple):
    """`version` counts the changes. A `value` of None: it was removed."""

    version: int
    value: Value | None


class ItemChange(NamedTuple):
    """One change: `version` after it, `at` its time (epoch ms), `by` its caller."""

    item: str
    version: int
    value: Value | None
    at: int
    by: str

    def frame(self) -> bytes:
        """The record of it."""
        return pack_record(self.item.encode(), (), orjson.dumps({"format": _FORMAT, **self._asdict()}))


class AdminState:
    """The items after all records up to `next_offset`, read in order from `start`, the first offset that is kept."""

    def __init__(self, start: int) -> None:
        self.items: dict[str, Item] = {}
        self.next_offset = self._start = start
        self.is_complete = start == 0
        """Whether the state is complete despite dropped records: the log was read from its first record, or a snapshot
        was read."""
        self.changed_kinds = set[str]()
        """The kinds of items that have changed, until the reader clears it."""
        self._behind: list[tuple[int, ItemChange]] = []  # changes that may be newer than a snapshot still to come
        self._sizes: dict[str, int] = {}
        self._removed: dict[str, None] = {}  # names of removed items, earliest first
        self._floor = 0  # the highest version of a forgotten removed item: no item gets it again

    def apply(self, record: StoredRecord) -> bool:
        """Apply the next record; whether an item changed. Raises CorruptStore for an unknown record."""
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
            self.items.pop(name, None)  # a snapshot lists removed items in this order, too
            self._removed[name] = None
        self.items[name] = item
        self._sizes[name] = len(orjson.dumps(item.value))

    def _forget(self, name: str) -> None:
        """Forget a removed item. New items start above the versions of all forgotten ones, so that a change of an old
        version never counts."""
        self._floor = max(self._floor, self.items.pop(name).version)
        del self._removed[name], self._sizes[name]

    def _apply_snapshot(self, through: int, floor: int, items: Mapping[str, Item]) -> bool:
        # A snapshot of a slow writer may be older than records that are already dropped.
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
        """The version that the next change must follow; for unknown items (new or forgotten), too."""
        return self.items[item].version if item in self.items else self._floor

    def of_kind(self, kind: str) -> Iterator[tuple[str, Value]]:
        """The items named `kind/...`, without those that were removed: the rest of the name, and the value."""
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
        """Raises Rejected `bad_field` if there is no room for a change. A change that does not grow an item always has
        room."""
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
        """The record with all current items. Records before `next_offset` are not needed with it."""
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

    `parse` raises KeyError, TypeError or ValueError for an item that it cannot read. Another version of duemq wrote
    that item, and an unknown field may restrict it, so the item is left out. `unreadable`: the names of such items.
    """

    def __init__(self, kind: str, parse: Callable[[Value], T]) -> None:
        self._kind, self._parse = kind, parse
        self._read: dict[str, tuple[Value, T | None]] = {}
        self.unreadable: frozenset[str] = frozenset()

    def read(self, state: AdminState) -> dict[str, T]:
        """The items, by the rest of their names."""
        before, self._read = self._read, {}
        for name, value in state.of_kind(self._kind):
            known = before.get(name)
            if known is None or known[0] is not value:  # other items change every second
                known = value, self._parsed(name, value)
            self._read[name] = known
        self.unreadable = frozenset(name for name, (_, item) in self._read.items() if item is None)
        return {name: item for name, (_, item) in self._read.items() if item is not None}

    def _parsed(self, name: str, value: Value) -> T | None:
        try:
            return self._parse(value)
        except (KeyError, TypeError, ValueError):  # its text may contain secrets
            log.error(
                "%s/%s is left out: another version of duemq wrote it", self._kind, name,
                extra={"action": "admin.unreadable", "item": f"{self._kind}/{name}"},
            )  # fmt: skip
            return None
