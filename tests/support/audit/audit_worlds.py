"""Many copies of one history, each with other shards, so that one audit judges each of them separately.

A world is the rows of all logs of the history, read once from a real Kafka, to be changed by a fault. World `n` has the
shards `2n` and `2n + 1`, names that belong there, and a copy of the imported file.
"""

from __future__ import annotations

import random
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from duemq.model.log.ledger import Answer, OutcomeCounts
from duemq.model.messages.ids import DIRECT
from duemq.model.messages.key import CHECKSUM_MASK, checksum, make_key
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered
from duemq.pipeline.audit.window import ShardWindow
from duemq.pipeline.logs import decode
from tests.support.audit.audit_site import SHARDS

T = TypeVar("T")
Record = dict[str, Any]
Message = tuple[int, int]
Found = tuple[str, int, int, int]
"""Kind, shard, offset and row of a violation; -1 for what is about a shard."""
ELSEWHERE: Final = "n:elsewhere"
"""What names begin with that keep the partition they came by."""
NOBODYS: Final = 60_000
"""Shards from here on are of nobody."""


def one_of(chosen: random.Random, candidates: Iterable[T]) -> T:
    """One of these, for a fault. A history that has none of them was not long enough: then it has to say so."""
    found = list(candidates)
    assert found, "the history has nothing that this fault could be put into"
    return chosen.choice(found)


@dataclass
class World:
    """The rows of a history. `first`: its first shard."""

    first: int
    commands: list[Record]
    entries: list[Record]
    deliveries: list[Record]
    letters: list[Record]
    windows: dict[int, ShardWindow]
    used: set[Message] = field(default_factory=set)
    """Messages, by shard and offset, that a fault was put into."""

    # --- what there is ------------------------------------------------------------------------------------------------

    def schedules(self) -> dict[Message, Record]:
        return {_of(one): one for one in self.commands if one["kind"] == "schedule"}

    def answers(self) -> dict[Message, Record]:
        """Each with `answer`, and the entry it is in."""
        return {
            (entry["shard"], one["offset"]): one | {"entry": entry}
            for entry in self.entries
            for one in entry["answers"] or ()
        }

    def changed(self) -> set[Message]:
        """Messages with more in their history than being sent."""
        by_id = {(one["shard"], one["first_offset"]) for one in self.commands if one["first_offset"] is not None}
        put_off = {(entry["shard"], one["offset"]) for entry in self.entries for one in entry["deferred"] or ()}
        spoken_of = {one["name"] for one in self.commands if one["kind"] != "schedule" and one["name"]}
        named = {key for key, one in self.schedules().items() if one["name"] in spoken_of}
        return by_id | put_off | named | self.used

    def plain(self) -> list[Record]:
        """Deliveries of messages that nothing was done to."""
        schedules, changed = self.schedules(), self.changed()
        return [one for one in self.deliveries if _message(one) in schedules and _message(one) not in changed]

    def waiting(self) -> list[Record]:
        """Schedules without a name, that nothing was done to and that are pending for long."""
        changed = self.changed()
        return [
            one for key, one in sorted(self.schedules().items())
            if one["name"] is None and key not in changed and one["due"] > one["at"] + 1_800_000
        ]  # fmt: skip

    def told(self, kind: str, answer: Answer) -> list[Record]:
        """Commands of a kind with this answer, from duemq's own proxies if they are changes."""
        answers = self.answers()
        return [
            one for one in self.commands
            if one["kind"] == kind and answers.get(_of(one), {}).get("answer") == answer and _of(one) not in self.used
            and (kind == "schedule" or kind == "malformed" or not one["plain"])
        ]  # fmt: skip

    # --- what is changed ----------------------------------------------------------------------------------------------

    def take(self, chosen: random.Random, records: Iterable[Record]) -> Record:
        """One of these records, whose message no other fault is put into."""
        victim = one_of(chosen, records)
        self.used.add(_message(victim))
        return victim

    def take_command(self, chosen: random.Random, commands: Iterable[Record]) -> Record:
        victim = one_of(chosen, commands)
        self.used.add(_of(victim))
        return victim

    def answer(self, message: Message, answer: Answer | None) -> None:
        """Change what the ledger answers to a command; None takes the answer away."""
        for entry in self.entries:
            if entry["shard"] == message[0]:
                entry["answers"] = [
                    one | {"answer": int(answer if answer is not None else 0)} if one["offset"] == message[1] else one
                    for one in entry["answers"] or ()
                    if answer is not None or one["offset"] != message[1]
                ]

    def count(self, shard: int, *, pending: int = 0, **more: int) -> None:
        """Let the ledger count this many more messages over the whole range: a server that believes its own error."""
        window = self.windows[shard]
        gained = window.gained._asdict()
        for name, number in more.items():
            gained[name] += number
        self.windows[shard] = replace(window, gained=OutcomeCounts(**gained), pending=window.pending + pending)

    def keys(self, shard: int, added: Iterable[Record] = (), taken: Iterable[Record] = ()) -> None:
        """Let the last checksum of a shard be that of other pending messages: of schedules added and taken away."""
        entries = [one for one in self.entries if one["shard"] == shard and one["n"] is not None]
        last = max(entries, key=lambda entry: int(entry["n"]))
        keys = [[make_key(one["due"], one["offset"], 0) for one in some] for some in (added, taken)]
        total = int(last["checksum"], 16) + checksum(keys[0]) - checksum(keys[1])
        last["checksum"] = f"{total & CHECKSUM_MASK:016x}"

    def record_of(self, schedule: Record, at: int) -> Record:
        """A record of a message, as if it had been delivered."""
        shown = {name: schedule[name] for name in ("topic", "content", "due", "metadata")}
        return self.deliveries[0] | shown | {
            "shard": schedule["shard"], "first_offset": schedule["offset"], "first_row": 0,
            "first_due": schedule["due"], "mac": 7, "at": at, "offset": 900_000 + schedule["offset"], "attempt": 1,
            "key_hash": None,
        }  # fmt: skip

    def letter_of(self, command: Record) -> Record:
        """The dead letter of a record that was malformed."""
        plain = next(one for one in self.letters if one["command"] is not None)
        return plain | {
            "command": command["offset"], "command_shard": command["shard"], "content": command["content"],
            "offset": 900_000 + command["offset"],
        }  # fmt: skip


def _of(command: Record) -> Message:
    return command["shard"], command["offset"]


def _message(record: Record) -> Message:
    return record["shard"], record["first_offset"]


def found(kind: str, record: Record) -> Found:
    """Of a record."""
    return kind, record["shard"], record["first_offset"], record["first_row"]


def of_command(kind: str, command: Record) -> Found:
    return kind, command["shard"], command["offset"], 0


def of_shard(shard: int) -> Found:
    return "ledger", shard, -1, -1


class Worlds:
    """Makes worlds of a history (`Gathered` of a real Kafka), and frames of them."""

    def __init__(self, gathered: Gathered, folder: Path) -> None:
        frames = gathered.frames
        self._rows = [
            [row.asDict(recursive=True) for row in frame.collect()]
            for frame in (frames.commands, frames.entries, frames.deliveries, frames.dead_letters)
        ]
        self._gathered, self._folder = gathered, folder
        self.made: list[World] = []

    def make(self) -> World:
        number = len(self.made)
        first = number * SHARDS
        commands, entries, deliveries, letters = ([_deep(row) for row in rows] for rows in self._rows)
        for row in (*commands, *entries, *letters):
            if row["shard"] is not None:
                row["shard"] += first
        for at, row in enumerate(deliveries):
            if row["shard"] == DIRECT:
                row["first_offset"] = number * 1_000 + at
            elif row["shard"] is not None:
                row["shard"] += first
        for row in commands:
            # Letters of malformed records did not always tell their shard.
            if row["kind"] == "malformed":
                row["content"] += number
            if row["path"] is not None:
                copy = self._folder / f"{number}.parquet"
                if not copy.exists():
                    shutil.copy(row["path"], copy)
                row["path"] = str(copy)
        for row in letters:
            if row["command"] is not None:
                row["content"] += number
            if row["command_shard"] is not None:
                row["command_shard"] += first
        windows = {
            shard + first: replace(one, shard=shard + first) for shard, one in self._gathered.extent.windows.items()
        }
        world = World(first, commands, entries, deliveries, letters, windows)
        self.made.append(world)
        return world

    def gathered(self, spark: SparkSession) -> Gathered:
        """All of them, as if read from one Kafka."""
        worlds = self.made
        shards = len(worlds) * SHARDS
        for world in worlds:
            _rename(world, shards)

        def frame(of: Callable[[World], list[Record]], schema: str) -> DataFrame:
            names = _names(schema)
            tuples = [tuple(row[name] for name in names) for world in worlds for row in of(world)]
            return spark.createDataFrame(tuples, schema).coalesce(2).cache()

        frames = Frames(
            frame(lambda world: world.entries, decode.ENTRIES),
            frame(lambda world: world.commands, decode.COMMANDS),
            frame(lambda world: world.deliveries, decode.DELIVERIES),
            frame(lambda world: world.letters, decode.DEAD_LETTERS),
        )
        windows = {shard: one for world in worlds for shard, one in world.windows.items()}
        extent: Extent = replace(self._gathered.extent, windows=windows)
        return replace(self._gathered, frames=frames, extent=extent)

    def world_of(self, violation: Found) -> int:
        """The number of a violation's world; -1 if it has none."""
        _, shard, offset, _ = violation
        if shard == DIRECT:
            return offset // 1_000
        return shard - NOBODYS if shard >= NOBODYS else -1 if shard < 0 else shard // SHARDS


def _rename(world: World, shards: int) -> None:
    """Names that plain clients may use in the same shard, for this many shards."""
    names: dict[tuple[int, str], str] = {}
    for row in world.commands:
        name = row["name"]
        if name is None or name.startswith(ELSEWHERE):
            continue
        if (row["shard"], name) not in names:
            fit = (f"{name}-{n}" for n in count())
            names[row["shard"], name] = next(one for one in fit if zlib.crc32(one.encode()) % shards == row["shard"])
        row["name"] = names[row["shard"], name]


def _deep(row: Record) -> Record:
    return {
        name: [dict(one) if isinstance(one, dict) else one for one in value] if isinstance(value, list) else value
        for name, value in row.items()
    }  # fmt: skip


def _names(schema: str) -> list[str]:
    """The columns of a DDL."""
    names, depth, word = [], 0, ""
    for char in schema + ",":
        depth += (char == "<") - (char == ">")
        if char == "," and not depth:
            names.append(word.split()[0])
            word = ""
        else:
            word += char
    return names
