"""What a disk holds of a folder when the power goes: all that was synced, and as much of the rest as chance leaves.

Durable is

* of a file: what was written before its last sync began, if that sync returned;
* of a folder: the names that were given and taken before its last sync began. A rename is whole or not at all, and is
  durable with a sync of either folder. A file that was synced may be lost with its name, as POSIX allows.

What was not synced is gone, or with `chance` a part of it is there (`survivors`, `left_of`): pages and torn ends of
files in any order, with zeros where a page between is missing, and name changes up to some moment, in the order that
the journals of ext4 and XFS keep. (RocksDB cannot do without that order: one sync of the folder is for CURRENT and for
the manifest that it names.) Not modelled: damage to what was synced, a disk that lies about a sync, a state between two
writes of one page, and permissions and times, which are taken for durable at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.power.trace import Kind, Note

PAGE_BYTES = 4096


class Inode(NamedTuple):
    """`birth` tells those apart that had one number after the other."""

    number: int
    birth: int = 0


Name = tuple[Inode, str]
"""A folder, and a name in it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Names and what they lead to from then on, None where they are gone; all of it or nothing."""

    at: int
    names: Mapping[Name, Inode | None]


@dataclass
class Disk:
    """`names`: the durable ones. `changes` of names and `writes` to files: those that are not durable yet, in order.

    `later`: writes after the moment at which the power goes, which the files hold by now. `sizes`: what those files
    have by now that were changed.
    """

    names: dict[Name, Inode]
    folders: set[Inode]
    changes: list[Change] = field(default_factory=list)
    writes: defaultdict[Inode, list[tuple[int, Note]]] = field(default_factory=lambda: defaultdict(list))
    later: defaultdict[Inode, list[tuple[int, Note]]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[Inode, int] = field(default_factory=dict)
    _newest: dict[int, Inode] = field(default_factory=dict)
    _begun: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._newest |= {inode.number: inode for name, child in self.names.items() for inode in (name[0], child)}

    def replay(self, notes: Iterable[Note], until: int | None = None) -> None:
        """The power goes when `until` notes were made, or after the last one."""
        for at, note in enumerate(notes):
            if until is None or at < until:
                self._note(at, note)
            elif note.kind in (Kind.WRITE, Kind.RESIZE):
                self.later[self._inode(note.inode)].append((at, note))
            elif note.kind in (Kind.CREATE, Kind.FOLDER):
                self._born(note)

    def _inode(self, number: int) -> Inode:
        return self._newest.setdefault(number, Inode(number))

    def _born(self, note: Note) -> Inode:
        before = self._newest.get(note.inode)
        inode = self._newest[note.inode] = Inode(note.inode, 0 if before is None else before.birth + 1)
        if note.kind is Kind.FOLDER:
            self.folders.add(inode)
        return inode

    def _note(self, at: int, note: Note) -> None:
        name = (self._inode(note.folder), note.name)
        match note.kind:
            case Kind.WRITE | Kind.RESIZE:
                inode, end = self._inode(note.inode), note.offset + note.length
                self.writes[inode].append((at, note))
                self.sizes[inode] = max(note.size, end) if note.kind is Kind.WRITE else note.length
            case Kind.CREATE | Kind.FOLDER:
                self.changes.append(Change(at, {name: self._born(note)}))
            case Kind.LINK:
                self.changes.append(Change(at, {name: self._inode(note.inode)}))
            case Kind.REMOVE:
                self.changes.append(Change(at, {name: None}))
            case Kind.RENAME:
                before = (self._inode(note.from_folder), note.from_name)
                self.changes.append(Change(at, {before: None, name: self._inode(note.inode)}))
            case Kind.SYNC_BEGIN:
                self._begun[note.offset] = at
            case Kind.SYNC_END if note.offset in self._begun:
                self._sync(self._inode(note.inode), self._begun.pop(note.offset))

    def _sync(self, inode: Inode, begun: int) -> None:
        if inode in self.writes:
            self.writes[inode] = [(at, note) for at, note in self.writes[inode] if at > begun]
        self.settle(
            change
            for change in self.changes
            if change.at < begun and any(inode == folder for folder, _ in change.names)
        )

    def settle(self, changes: Iterable[Change]) -> None:
        """Make them durable, and with each what was done to the same names before it."""
        wanted = {change.at for change in changes}
        chosen: list[Change] = []
        names: set[Name] = set()
        for change in reversed(self.changes):
            if change.at in wanted or names & change.names.keys():
                chosen.append(change)
                names |= change.names.keys()
        for change in reversed(chosen):
            for name, inode in change.names.items():
                if inode is None:
                    self.names.pop(name, None)
                else:
                    self.names[name] = inode
        done = {change.at for change in chosen}
        self.changes = [change for change in self.changes if change.at not in done]

    def survivors(self, chance: Random | None) -> None:
        """Make durable what chance leaves of the changes of names: those up to some moment."""
        if chance is not None:
            self.settle(self.changes[: chance.randrange(len(self.changes) + 1)])
        self.changes.clear()

    def tree(self, root: Inode) -> Iterator[tuple[str, Inode]]:
        """All paths below a folder, with what is there; a folder before what is in it."""
        children: defaultdict[Inode, list[tuple[str, Inode]]] = defaultdict(list)
        for (folder, name), child in self.names.items():
            children[folder].append((name, child))
        waiting = [("", root)]
        while waiting:
            path, folder = waiting.pop()
            for name, child in children[folder]:
                yield path + name, child
                waiting.append((f"{path}{name}/", child))


def undone(content: bytes, writes: Iterable[tuple[int, Note]]) -> bytearray:
    """The content of a file without these last changes of it."""
    before = bytearray(content)
    for _, note in reversed(list(writes)):
        before[note.offset : note.offset + len(note.old)] = note.old
        del before[note.size :]
        before.extend(bytes(note.size - len(before)))
    return before


def left_of(content: bytes, writes: list[tuple[int, Note]], chance: Random | None) -> bytes:
    """What the disk holds of a file: the synced bytes, and of what came later nothing, or what chance leaves."""
    before = undone(content, writes)
    if chance is None:
        return bytes(before)
    kind = chance.choice(["nothing", "all", "torn", "pages", "pages"])
    if kind == "all" or (kind != "nothing" and any(note.kind is Kind.RESIZE for _, note in writes)):
        return content
    if kind == "nothing":
        return bytes(before)
    if kind == "torn":  # what is appended reaches the disk up to some byte
        return bytes(before) + content[len(before) : chance.randint(len(before), max(len(before), len(content)))]
    touched = {
        page
        for _, note in writes
        for page in range(note.offset // PAGE_BYTES, -(-(note.offset + note.length) // PAGE_BYTES))
    }
    for page in sorted(page for page in touched if chance.random() < 0.5):
        start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(content))
        if start < end:
            before.extend(bytes(max(0, end - len(before))))
            before[start:end] = content[start:end]
    return bytes(before)
