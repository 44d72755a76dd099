"""Lag as a table: one row per topic, or per partition."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from duemq.cli.output import echo_table
from duemq.client.lag import GroupLag, GroupState, Matches, PartitionLag, TopicLag, Total

_UNKNOWN = "unknown"
_NOTHING = "-"


def echo_lag(groups: Sequence[GroupLag], *, by_partition: bool, tags: str | None) -> None:
    """Print a table. LAG, IN HAND and AVAILABLE are offsets, each with the age of the oldest message; in a pipe, the
    age is a separate column."""
    columns = ["GROUP", "MEMBERS", "TOPIC", *["PARTITION"] * by_partition, "LAG", "IN HAND", "AVAILABLE"]
    columns += [*["MATCHING"] * (tags is not None), "NOTE"]
    echo_table(columns, (row for group in groups for row in _rows(group, by_partition, tags is not None)))


def _rows(group: GroupLag, by_partition: bool, matching: bool) -> Iterator[list[str]]:
    head = [group.group, _state(group)]
    if not group.topics:
        cells = 3 if sys.stdout.isatty() else 6
        yield [*head, *[_NOTHING] * (1 + by_partition + cells + matching), "no topics"]
    for topic in group.topics:
        if by_partition:
            for one in topic.partitions:
                place = [topic.topic, str(one.partition)]
                yield [*head, *place, *_figures(one, matching), _note(topic, [one])]
        else:
            yield [*head, topic.topic, *_figures(topic.total, matching), _note(topic, topic.partitions)]
    if sum(not topic.retry for topic in group.topics) > 1:
        place = ["all", "all"] if by_partition else ["all"]
        retried = any(topic.retry for topic in group.topics)
        yield [*head, *place, *_figures(group.total, matching), "without retries" if retried else ""]


def _figures(one: PartitionLag | Total, matching: bool) -> list[str]:
    missing = _NOTHING if one.lag is None else _UNKNOWN
    cells = []
    for count, ms in ((one.lag, one.lag_ms), (one.inflight, one.inflight_ms), (one.available, one.available_ms)):
        number, age = number_text(count) or missing, _NOTHING if ms is None or not count else age_text(ms)
        if sys.stdout.isatty():
            cells.append(number if age == _NOTHING else f"{number} ({age})")
        else:
            cells += [number, age]
    if matching:
        cells.append(_NOTHING if one.matching is None else matching_text(one.matching))
    return cells


def _state(group: GroupLag) -> str:
    if group.offline:
        return "offline"
    return str(group.members) if group.state == "Stable" else f"{group.members}, {group.state}"


def _note(topic: TopicLag, partitions: Iterable[PartitionLag]) -> str:
    each = list(partitions)
    notes = ["retries"] * topic.retry
    for state in (GroupState.NO_COMMIT, GroupState.GONE, GroupState.UNREADABLE, GroupState.AHEAD):
        if count := sum(one.state is state for one in each):
            notes.append(f"{state}: {count} of {len(each)}" if len(each) > 1 else state)
    if lost := sum(one.lost for one in each):
        notes.append(f"{number_text(lost)} lost")
    return ", ".join(notes)


def number_text(value: int | None) -> str:
    """A number with thousands separators in a terminal, and plain digits in a pipe; empty if it is unknown."""
    if value is None:
        return ""
    return f"{value:,}" if sys.stdout.isatty() else str(value)


def matching_text(matches: Matches) -> str:
    """`1200`, or `1200+` if there may be more."""
    return number_text(matches.messages) + ("" if matches.exact else "+")


def age_text(ms: int) -> str:
    """`340ms`, `5.2s`, `3m`, `5h`, `4d`: rounded for readers."""
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    for limit, unit_ms, unit in ((7_200_000, 60_000, "m"), (172_800_000, 3_600_000, "h")):
        if ms < limit:
            return f"{ms // unit_ms}{unit}"
    return f"{ms // 86_400_000}d"
