"""What an audit rests on: the logs as frames, and the frames that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from duemq.pipeline.audit import changes
from duemq.pipeline.audit.sums import Compared
from duemq.pipeline.audit.window import Finding, ShardWindow
from duemq.pipeline.logs.ranges import TopicRange


@dataclass(frozen=True, slots=True)
class Frames:
    """The logs, read. `deliveries` have no `id` where its numbers say the same."""

    entries: DataFrame
    commands: DataFrame
    deliveries: DataFrame
    dead_letters: DataFrame


@dataclass(frozen=True, slots=True)
class Extent:
    """What the frames hold: see `ShardWindow` and `TopicRanges`. `tolerance_ms`: see `violations.judged`.
    `seen_at`: see `window.as_frame`; `longest_retry_ms`: see `changes.decided`."""

    windows: Mapping[int, ShardWindow]
    topics: Mapping[str, int]
    anywhere_from: int | None = None
    letters_from: int | None = None
    tolerance_ms: int = 0
    seen_at: int = 0
    longest_retry_ms: int = changes.LONGEST_RETRY_MS


@dataclass(frozen=True, slots=True)
class Gathered:
    """`findings`, `notes`: what is known before any message was looked at."""

    frames: Frames
    extent: Extent
    findings: Sequence[Finding]
    notes: Sequence[str]
    ranges: Sequence[TopicRange]


@dataclass(frozen=True, slots=True)
class Judged:
    """Frames that follow from the logs: see `outcomes.outcomes` and `changes`. `entries`: those of the range;
    `imported`: `imported.rows_of`; `windows`: `window.as_frame`. `compared`: the messages that need no look, of which
    `outcomes` has no rows; None where it has all of them."""

    outcomes: DataFrame
    entries: DataFrame
    answers: DataFrame
    cycles: DataFrame
    changes: DataFrame
    deferrals: DataFrame
    summary: DataFrame
    imported: DataFrame
    windows: DataFrame
    compared: Compared | None = None
