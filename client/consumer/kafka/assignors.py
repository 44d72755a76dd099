"""Kafka assignors that distribute a group's partitions with the same functions that distribute shards among nodes
(`duemq.election.allocation`), and report members with different subscriptions.

Each member puts its subscription and its rack into the user data of its membership. The leader compares them, and
reports the differing members to every member, in the user data of its assignment. A difference causes a warning, not an
error: in a rolling deployment members differ for a while. Each member still gets only partitions of topics that it
subscribes to.

All members of a group need the same strategy: Kafka refuses a member that has none in common with the others.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from duemq.client.consumer.base import Mismatch
from duemq.client.consumer.work.tags import ALL, TagFilter
from duemq.election.allocation import STRATEGIES, StrategyName
from duemq.election.base import Member
from duemq.model.errors import Rejected

log = logging.getLogger(__name__)

# Limit for the total size of a leader's reports on mismatches to all members, in bytes. Kafka stores a group's metadata
# as one record of at most 1 MiB; if the metadata is larger, it refuses the whole group.
_TELLING_BYTES = 128 << 10
_VERSION = 1

Partition = tuple[str, int]
"""A partition: topic and number."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A member of a group, as its leader sees it. `tags`: the tag filter for each topic that it subscribes to; None if
    the member does not report its filters."""

    topics: frozenset[str]
    rack: str = ""
    tags: Mapping[str, str] | None = field(default=None, hash=False)


OnMismatch = Callable[[Sequence[Mismatch]], None]
"""Called after each assignment with the mismatches: this member's first, then as many others as fit into the group's
metadata. Empty: all subscriptions are the same."""


def shares(
    strategy: StrategyName, seats: Mapping[str, Seat], partitions: Mapping[str, Iterable[int]]
) -> dict[str, list[Partition]]:
    """Each member's partitions. A partition is assigned only to a member that subscribes to its topic.

    Topics with the same set of subscribers are balanced together.
    """
    subscribed: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for topic in sorted(partitions):
        if subscribers := frozenset(name for name, seat in seats.items() if topic in seat.topics):
            subscribed[subscribers].append(topic)
    shared: dict[str, list[Partition]] = {name: [] for name in seats}
    for names, topics in subscribed.items():
        places = _in_order(strategy, {topic: sorted(partitions[topic]) for topic in topics})
        members = [Member(name, url="", rack=seats[name].rack) for name in names]
        for number, name in STRATEGIES[strategy](range(len(places)), members).items():
            shared[name].append(places[number])
    return {name: sorted(places) for name, places in shared.items()}


def _in_order(strategy: StrategyName, partitions: Mapping[str, Sequence[int]]) -> list[Partition]:
    """The partitions sorted by topic; for the strategy `average`, by relative position in the topic. Otherwise one
    member could get a whole topic, and another one only its retry topic."""
    places = [
        (Fraction(at, len(numbers)) if strategy is StrategyName.AVERAGE else Fraction(0), topic, number)
        for topic, numbers in partitions.items()
        for at, number in enumerate(numbers)
    ]
    return [(topic, number) for _, topic, number in sorted(places)]


def mismatches(seats: Mapping[str, Seat]) -> tuple[Mismatch, ...]:
    """How members differ from the majority. Members that do not report their tag filters are left out."""
    subscriptions = {name: seat.tags for name, seat in seats.items() if seat.tags is not None}
    differences: list[Mismatch] = []
    for topic in {topic for tags in subscriptions.values() for topic in tags}:
        by_member = {name: tags.get(topic) for name, tags in subscriptions.items()}
        count = Counter(by_member.values())
        expected = min(count, key=lambda tags: (-count[tags], tags is None, tags or ""))
        differences += [Mismatch(name, topic, expected, tags) for name, tags in by_member.items() if tags != expected]
    return tuple(sorted(differences, key=lambda each: (each.member, each.topic)))


def assignor(
    strategy: StrategyName | str,
    rack: str = "",
    subscription: Mapping[str, str] | None = None,
    on_mismatch: OnMismatch | None = None,
) -> type[AbstractPartitionAssignor]:
    """An assignor class for one consumer's `partition_assignment_strategy` (aiokafka requires a class, and passes no
    settings). Its name is `duemq-average` and so on.

    `subscription`: the tag filter for each topic; without a filter, all tags of the topic match.
    Raises Rejected `bad_option` or `bad_tags`.
    """
    if strategy not in tuple(StrategyName):
        raise Rejected(
            "bad_option", f"allocation is {strategy!r}; it is one of {', '.join(StrategyName)}", "allocation"
        )
    chosen = StrategyName(strategy)
    filters = {topic: str(TagFilter.parse(text)) for topic, text in (subscription or {}).items()}
    tell = on_mismatch or _warn

    class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
        name = f"duemq-{chosen.replace('_', '-')}"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            subscribed = sorted(topics)
            tags = {topic: filters.get(topic, ALL) for topic in subscribed}
            return ConsumerProtocolMemberMetadata(0, subscribed, _pack(rack=rack, tags=tags))

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            seats = {name: _seat(metadata) for name, metadata in members.items()}
            topics = {topic for seat in seats.values() for topic in seat.topics}
            partitions = {topic: cluster.partitions_for_topic(topic) or () for topic in topics}
            wrong = mismatches(seats)
            return {
                name: ConsumerProtocolMemberAssignment(
                    0, _by_topic(places), _telling(name, wrong, _TELLING_BYTES // len(seats))
                )
                for name, places in shares(chosen, seats, partitions).items()
            }

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            try:
                tell(_mismatches_in(assignment.user_data))
            except Exception:  # the error would keep this member out of the group
                log.exception("consumer cannot report a mismatch in its group", extra={"action": "mismatch"})

    return Assignor


def _warn(differences: Sequence[Mismatch]) -> None:
    for mismatch in differences:
        log.warning("consumer is in a group with different subscriptions: %s", mismatch, extra={"action": "mismatch"})


def _by_topic(places: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in places:
        by_topic[topic].append(number)
    return sorted(by_topic.items())


def _telling(member: str, wrong: Sequence[Mismatch], most: int) -> bytes:
    """The mismatches to report to a member: its own first, as many as fit into `most` bytes."""
    chosen: list[dict[str, Any]] = []
    room = most
    for mismatch in sorted(wrong, key=lambda each: each.member != member):
        packed = asdict(mismatch)
        room -= len(json.dumps(packed)) + 2
        if room < 0:
            break
        chosen.append(packed)
    return _pack(mismatches=chosen)


def _mismatches_in(user_data: bytes | None) -> tuple[Mismatch, ...]:
    return tuple(Mismatch(**each) for each in _unpack(user_data).get("mismatches", ()))


def _seat(metadata: ConsumerProtocolMemberMetadata) -> Seat:
    document = _unpack(metadata.user_data)
    return Seat(frozenset(metadata.subscription), document.get("rack", ""), document.get("tags"))


def _pack(**fields: Any) -> bytes:
    return json.dumps({"version": _VERSION, **fields}, separators=(",", ":")).encode()


def _unpack(user_data: bytes | None) -> dict[str, Any]:
    """The JSON document in user data. Empty if it has another version: members of different versions must work in the
    same group."""
    try:
        document = json.loads(user_data or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("version") == _VERSION else {}
