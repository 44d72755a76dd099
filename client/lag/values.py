"""The lag of a group: figures of each partition, and their totals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from duemq.model.topics.group_topics import retry_topic


class GroupState(StrEnum):
    """How reliable a partition's figures are."""

    OK = "ok"
    NO_COMMIT = "no commit"
    """The group has committed no offset here: its lag depends on where it will start."""
    REMOVED = "removed"
    """Retention removed messages that the group had not committed: they count as `lost`, not in its lag."""
    AHEAD = "ahead"
    """The commit is past the end. The topic was recreated, or the group reads uncommitted records."""
    GONE = "gone"
    """The topic no longer exists, or has fewer partitions."""
    UNREADABLE = "unreadable"
    """It has no leader at present, or may not be read."""


class PartitionEnds(NamedTuple):
    """A partition's first offset, and the one after the last that a read_committed reader can see."""

    start: int
    max: int


class FirstMessage(NamedTuple):
    """The first message at or after an offset: its position, and when it was appended (epoch ms)."""

    offset: int
    timestamp: int


class Matches(NamedTuple):
    """`messages` that pass a filter; there may be more if it is not `exact`."""

    messages: int
    exact: bool


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """`lag` = `max` - `commit`, `inflight` = `pull` - `commit`, `available` = `max` - `pull`, in offsets; each is 0 if
    the range has no message, only remains of transactions. The times, in ms, are the age of the oldest of these
    messages, 0 if there is none. None means unknown: everything without a commit; without a pull offset, the figures
    that need it. `lost`: offsets that retention removed after the commit. `matching`: messages that pass the tag
    filter, if there is one.
    """

    topic: str
    partition: int
    state: GroupState
    start: int | None = None
    max: int | None = None
    commit: int | None = None
    pull: int | None = None
    lag: int | None = None
    inflight: int | None = None
    available: int | None = None
    lag_ms: int | None = None
    inflight_ms: int | None = None
    available_ms: int | None = None
    lost: int = 0
    matching: Matches | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of several partitions: sums, and the longest of the times. Partitions with unknown lag are counted in
    `unknown` and are in no sum. `inflight` and `available` are None if any of the others does not report them."""

    partitions: int
    unknown: int
    lag: int | None
    inflight: int | None
    available: int | None
    lag_ms: int | None
    inflight_ms: int | None
    available_ms: int | None
    lost: int
    matching: Matches | None


@dataclass(frozen=True, slots=True)
class TopicLag:
    topic: str
    retry: bool
    """The group's retry topic."""
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> Total:
        return totalled(self.partitions)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group. `state` is Kafka's word; `members` are those that joined. Consumers that assign their
    partitions themselves do not join."""

    group: str
    state: str
    members: int
    topics: tuple[TopicLag, ...]

    @property
    def offline(self) -> bool:
        return self.members == 0

    @property
    def total(self) -> Total:
        """The totals of all topics except the group's retry topic."""
        return totalled(part for topic in self.topics if not topic.retry for part in topic.partitions)

    @property
    def retry_total(self) -> Total:
        """The totals of the group's retry topic."""
        return totalled(part for topic in self.topics if topic.retry for part in topic.partitions)


class OffsetAndTime(NamedTuple):
    """A group's position in a partition. `pull` is None if it does not report it."""

    commit: int | None
    pull: int | None


def clamped(place: OffsetAndTime, ends: PartitionEnds) -> OffsetAndTime:
    """The effective position: removed messages cannot be read any more, and none exist after the end."""
    low = place.commit if place.commit is None else min(max(place.commit, ends.start), ends.max)
    if low is None or place.pull is None:
        return OffsetAndTime(low, None)
    return OffsetAndTime(low, min(max(place.pull, low), ends.max))


def measured(
    topic: str,
    partition: int,
    place: OffsetAndTime,
    ends: PartitionEnds,
    now: int,
    oldest: FirstMessage | None,
    waiting: FirstMessage | None,
) -> PartitionLag:
    """The lag of a partition. `oldest`: the first message not committed, `waiting`: the first not pulled. `now`: epoch
    ms."""
    if place.commit is None:
        return PartitionLag(topic, partition, GroupState.NO_COMMIT, ends.start, ends.max)
    low, pull = clamped(place, ends)
    assert low is not None
    state = (
        GroupState.AHEAD
        if place.commit > ends.max
        else GroupState.REMOVED
        if place.commit < ends.start
        else GroupState.OK
    )
    lag_ms = 0 if oldest is None else max(now - oldest.timestamp, 0)
    inflight = available = inflight_ms = available_ms = None
    if pull is None:
        lag = 0 if oldest is None else ends.max - low
    else:
        # The offsets before or after the pull offset may be only markers and aborted messages.
        in_hand = oldest is not None and oldest.offset < pull
        inflight, inflight_ms = (pull - low, lag_ms) if in_hand else (0, 0)
        available = 0 if waiting is None else ends.max - pull
        available_ms = 0 if waiting is None else max(now - waiting.timestamp, 0)
        lag = inflight + available
    return PartitionLag(
        topic, partition, state, ends.start, ends.max, place.commit, place.pull, lag, inflight, available, lag_ms,
        inflight_ms, available_ms, max(ends.start - place.commit, 0),
    )  # fmt: skip


def by_topic(group: str, partitions: Iterable[PartitionLag]) -> tuple[TopicLag, ...]:
    """The topics by name, the group's retry topic last."""
    by_name: dict[str, list[PartitionLag]] = {}
    for one in partitions:
        by_name.setdefault(one.topic, []).append(one)
    own = retry_topic(group)
    return tuple(
        TopicLag(topic, topic == own, tuple(sorted(by_name[topic], key=lambda one: one.partition)))
        for topic in sorted(by_name, key=lambda topic: (topic == own, topic))
    )


def totalled(partitions: Iterable[PartitionLag]) -> Total:
    each = list(partitions)
    with_lag = [one for one in each if one.lag is not None]
    matching = [one.matching for one in with_lag if one.matching is not None]
    return Total(
        len(each),
        len(each) - len(with_lag),
        _sum([one.lag for one in with_lag]),
        _sum([one.inflight for one in with_lag]),
        _sum([one.available for one in with_lag]),
        _longest([one.lag_ms for one in with_lag]),
        _longest([one.inflight_ms for one in with_lag]),
        _longest([one.available_ms for one in with_lag]),
        sum(one.lost for one in with_lag),
        Matches(sum(one.messages for one in matching), all(one.exact for one in matching))
        if matching and len(matching) == len(with_lag)
        else None,
    )


def _sum(values: Sequence[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(values) else None


def _longest(values: Sequence[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return max(numbers) if numbers and len(numbers) == len(values) else None
