"""The lag of a group: figures for each partition, and their totals. Pure."""

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
    """The group has committed no offset in the partition: its lag depends on where it will start."""
    REMOVED = "removed"
    """Retention removed messages that the group had not committed. They are counted in `lost`, not in the lag."""
    AHEAD = "ahead"
    """The committed offset is past the end. The topic was recreated, or the group reads uncommitted records."""
    GONE = "gone"
    """The topic no longer exists, or no longer has this partition."""
    UNREADABLE = "unreadable"
    """The partition has no leader at present, or this user may not read it."""


class PartitionEnds(NamedTuple):
    """A partition's first offset, and the offset after the last record that can be read with the isolation level
    `read_committed`."""

    start: int
    max: int


class FirstMessage(NamedTuple):
    """The first message at or after an offset: its position, and when it was appended (epoch ms)."""

    offset: int
    timestamp: int


class Matches(NamedTuple):
    """The number of messages that pass a filter. If it is not `exact`, more messages may pass."""

    messages: int
    exact: bool


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag in one partition. `lag` = `max` - `commit`, `inflight` = `pull` - `commit`, `available` = `max` - `pull`,
    in offsets. Each is 0 if its range contains no message, but only transaction markers and aborted records. The times,
    in ms, are the age of the oldest message in the range, or 0 if it contains none. None means unknown: without a
    committed offset, all figures; without a pull offset, those computed from it. `lost`: the number of offsets after
    the committed one that retention removed. `matching`: the number of messages that pass the tag filter, if one was
    given.
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
    """The totals for several partitions: the sums, and the longest of the times. Partitions with unknown lag are
    counted in `unknown` and not included in the sums. `inflight` and `available` are None if they are unknown for any
    other partition."""

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
    """Whether this is the group's retry topic."""
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> Total:
        return totalled(self.partitions)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group. `state`: as Kafka reports it. `members`: how many have joined the group. Consumers that
    assign partitions to themselves do not join."""

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
    """A group's position in a partition. `pull` is None if the group does not report it."""

    commit: int | None
    pull: int | None


def clamped(place: OffsetAndTime, ends: PartitionEnds) -> OffsetAndTime:
    """The effective position, within the partition's ends: removed messages cannot be read any more, and no messages
    exist after the end."""
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
    """The lag in a partition. `oldest`: the first message at or after the committed offset; `waiting`: the first one
    that has not been pulled. `now`: epoch ms."""
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
        # The offsets on either side of the pull offset may contain only transaction markers and aborted records.
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
    """The lag of each topic, sorted by name, with the group's retry topic last."""
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
