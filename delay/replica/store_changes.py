"""The changes that a committed cycle makes to the store and the wheel."""

from __future__ import annotations

from collections.abc import Mapping

from duemq.delay.core.cycle import Cycle
from duemq.model.log.ledger import Entry
from duemq.model.messages.key import due_of, dues_of
from duemq.model.messages.row import name_of
from duemq.model.timing import window_of
from duemq.storage.keyspace import APPLIED, CURSOR, ENDED, ENDED_IN, LAST_END, MOVED, NAME, NAME_DUE, ROW, U64, WHEN
from duemq.storage.shard.store import Puts
from duemq.wheel.wheel import Wheel


def store_changes(cycle: Cycle, entry: Entry, last_ends: Mapping[int, int]) -> tuple[Puts, list[bytes]]:
    """The puts and deletes for one atomic write. Their keys include prefixes.

    `last_ends`: when (ms) the last message in a window ended, for windows with messages that ended in this cycle.
    """
    puts: Puts = [(ROW + key, row) for key, row in cycle.placed.items()]
    deletes = [ROW + key for key in cycle.removed]
    for key, ended in cycle.endings.items():
        if ended is None:
            deletes.append(ENDED + key)
        else:
            puts.append((ENDED + key, ended._replace(at=entry.at).encode()))
            puts.append((ENDED_IN + U64.pack(window_of(entry.at)) + key, b""))
    for name, holder in cycle.names.items():
        puts.append((NAME + name, holder))
        puts.append((NAME_DUE + U64.pack(window_of(due_of(holder))) + name, b""))
    for first_key, key in cycle.current_keys.items():
        puts.append((MOVED + first_key, key))
        row = cycle.placed.get(key)
        if row is not None and (name := name_of(row)):
            puts.append((NAME_DUE + U64.pack(window_of(due_of(key))) + name, b""))
    puts += ((LAST_END + U64.pack(window), U64.pack(at)) for window, at in last_ends.items())
    when = WHEN.pack(entry.number, entry.at)
    if entry.cursor != cycle.before.cursor:
        puts.append((CURSOR + entry.cursor, when))
    if entry.applied != cycle.before.applied:
        puts.append((APPLIED + U64.pack(entry.applied), when))
    return puts, deletes


def count_changes(cycle: Cycle, entry: Entry, wheel: Wheel) -> None:
    """Advance the wheel. Raises CountMismatch if the counts and the store's rows differ."""
    if removed := cycle.removed_keys():
        wheel.remove(dues_of(removed))
    if cycle.scanned:
        wheel.take(dues_of(cycle.scanned), through=due_of(entry.cursor))
    else:
        wheel.advance(due_of(entry.cursor))
    if added := cycle.added_keys():
        wheel.add(dues_of(added))
