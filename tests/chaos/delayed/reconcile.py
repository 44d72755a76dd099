"""What the logs of a round hold in the end, against what its senders and committers were answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from tests.chaos.delayed.journal import Journal, Outcome
from tests.chaos.delayed.model_shard import Logs
from tests.chaos.topics import consumer

_FREE_S = 30.0  # the brokers end a transaction that hangs in less


class Stored(NamedTuple):
    """A committed record. `stamp`: the broker's time, epoch ms; `value`: its document."""

    offset: int
    stamp: int
    value: dict[str, Any]


Topics = Mapping[str, Sequence[Stored]]


async def read_topics(
    bootstrap: str, names: Sequence[str], wrong: list[str], partition: int = 0
) -> dict[str, list[Stored]]:
    """All committed records of one partition of these topics. `wrong` gets those whose readers are held up."""
    found: dict[str, list[Stored]] = {name: [] for name in names}
    async with (
        consumer(bootstrap, names) as reading,
        consumer(bootstrap, names, isolation_level="read_uncommitted") as uncommitted,
    ):
        parts = [at for at in reading.assignment() if at.partition == partition]
        written = await uncommitted.end_offsets(parts)
        deadline = time.monotonic() + _FREE_S
        while True:
            stable = await reading.end_offsets(parts)
            held_up = [at.topic for at in parts if stable[at] < written[at]]
            if not held_up or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        wrong += [f"hanging: readers of {topic} are held up" for topic in held_up]
        reading.assign(parts)
        while any([await reading.position(at) < stable[at] for at in parts]):
            for at, batch in (await reading.getmany(timeout_ms=100)).items():
                found[at.topic] += [
                    Stored(record.offset, record.timestamp, orjson.loads(record.value)) for record in batch
                ]
    return found


def compare(journal: Journal, logs: Logs, topics: Topics) -> list[str]:
    """What is wrong, one line each, beginning with its kind."""
    entries = [record for record in topics[logs.ledger] if "n" in record.value]
    return [
        *_commands(journal, topics[logs.buffer]),
        *_ledger(journal, entries),
        *_deliveries(logs, entries, topics),
        *_messages(topics[logs.buffer], logs, topics),
    ]


def _commands(journal: Journal, buffer: Sequence[Stored]) -> Iterable[str]:
    """The answers of `append`."""
    places: dict[str, list[int]] = defaultdict(list)
    for record in buffer:
        places[record.value["id"]].append(record.offset)
    for message in journal.sent:
        found = places.pop(message.id, [])
        if len(found) > 1:
            yield f"twice: command {message.id} is in the buffer at {found}"
        match message.outcome:
            case Outcome.DONE if found != [message.offset]:
                yield f"lost: command {message.id} was answered with offset {message.offset}, and is at {found}"
            case Outcome.NOTHING if found:
                yield f"untrue: command {message.id} was refused, and is at {found}"
    if places:
        yield f"untrue: commands that nobody sent: {sorted(places)[:5]}"


def _ledger(journal: Journal, entries: Sequence[Stored]) -> Iterable[str]:
    """The answers of `commit`, and the numbers of the entries."""
    numbers = [record.value["n"] for record in entries]
    if numbers != list(range(len(numbers))):
        odd = [number for number, times in Counter(numbers).items() if times > 1]
        yield f"ledger: numbers are not 0..{len(numbers) - 1}: twice {odd[:5]}, last {numbers[-3:]}"
    places = {(record.value["term"], record.value["n"]): record.offset for record in entries}
    for commit in journal.commits:
        place = places.pop((commit.term, commit.number), None)
        match commit.outcome:
            case Outcome.DONE if place != commit.offset:
                yield f"untrue: entry {commit.number} of {commit.term} was answered with {commit.offset}, is at {place}"
            case Outcome.NOTHING | Outcome.FENCED if place is not None:
                yield f"untrue: entry {commit.number} of {commit.term} was {commit.outcome}, and is at {place}"
    if places:
        yield f"untrue: entries that nobody committed: {sorted(places)[:5]}"


def _deliveries(logs: Logs, entries: Sequence[Stored], topics: Topics) -> Iterable[str]:
    """An entry and the deliveries it names come together, or none of both."""
    named = {(record.value["term"], record.value["n"]): sorted(record.value["ids"]) for record in entries}
    delivered: dict[tuple[str, int], list[str]] = defaultdict(list)
    for topic in logs.topic_states:
        for record in topics[topic]:
            delivered[record.value["term"], record.value["n"]].append(record.value["id"])
    for which in sorted(named.keys() | delivered.keys()):
        if which not in named:
            yield f"torn: {len(delivered[which])} deliveries of {which} without their entry"
        elif named[which] != sorted(delivered[which]):
            missing = len(named[which]) - len(delivered[which])
            yield f"torn: entry {which} names {len(named[which])} messages, {missing} more than were delivered"


def _messages(buffer: Sequence[Stored], logs: Logs, topics: Topics) -> Iterable[str]:
    """Every command in the buffer is delivered once, where and when it is to be."""
    places: dict[str, list[tuple[str, Stored]]] = defaultdict(list)
    for topic in logs.topic_states:
        for record in topics[topic]:
            places[record.value["id"]].append((topic, record))
    for command in buffer:
        message, found = command.value, places.pop(command.value["id"], [])
        if not found:
            yield f"lost: message {message['id']} was never delivered"
        if len(found) > 1:
            yield f"twice: message {message['id']} was delivered {len(found)} times"
        for topic, record in found:
            if topic != message["topic"]:
                yield f"untrue: message {message['id']} went to {topic}"
            if record.stamp < message["due"]:
                yield f"early: message {message['id']}, by {message['due'] - record.stamp} ms"
    if places:
        yield f"untrue: deliveries that nobody sent: {sorted(places)[:5]}"


def compare_node(outcomes: Mapping[str, Outcome], topic: str, before: Topics, after: Topics) -> Iterable[str]:
    """What is wrong after a round of nodes. `outcomes`: of the messages sent, by id; `topic`: their topic.

    `before` and `after`: the logs of the shard.
    """
    commands: dict[str, list[Stored]] = defaultdict(list)
    for record in after[BUFFER][len(before[BUFFER]) :]:
        commands[record.value["id"]].append(record)
    for name, outcome in outcomes.items():
        found = commands.get(name, [])
        if len(found) > 1:
            yield f"twice: command {name} is in the buffer {len(found)} times"
        if not found and outcome is Outcome.DONE:
            yield f"lost: command {name}, which was acknowledged"
        if found and outcome is Outcome.NOTHING:
            yield f"untrue: command {name} was refused, and is in the buffer"
    places: dict[str, list[Stored]] = defaultdict(list)
    for record in after[topic]:
        places[record.value["id"]].append(record)
    for name in commands:
        deliveries = places.pop(name, [])
        if len(deliveries) != 1:
            yield f"{'twice' if deliveries else 'lost'}: message {name} was delivered {len(deliveries)} times"
        for record in deliveries:
            if record.stamp < record.value["due"]:
                yield f"early: message {name}, by {record.value['due'] - record.stamp} ms"
    if places:
        yield f"untrue: deliveries that nobody sent: {sorted(places)[:5]}"
    yield from _entries(sum(map(len, commands.values())), before, after)


def _entries(count: int, before: Topics, after: Topics) -> Iterable[str]:
    """The ledger's entries follow one another, and say that so many messages more were accepted and delivered."""
    entries = [record.value for record in after[LEDGER] if "n" in record.value]
    older = [record.value for record in before[LEDGER] if "n" in record.value]
    numbers = [entry["n"] for entry in entries]
    if numbers != list(range(len(numbers))):
        yield f"ledger: the numbers of its entries are not 0..{len(numbers) - 1}"
    start, end = (each[-1]["fates"] if each else [0, 0, 0, 0] for each in (older, entries))
    grown = [new - old for old, new in zip(start, end, strict=True)]
    if grown != [count, count, 0, 0]:
        yield f"torn: the ledger has [accepted, delivered, cancelled, dead] {grown}, the logs {count} messages"
    if entries and entries[-1]["pending"]:
        yield f"lost: {entries[-1]['pending']} messages are pending"
