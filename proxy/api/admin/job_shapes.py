"""The shapes of requests and responses about bulk jobs and about dead letters in topics."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, RootModel

from duemq.proxy.api.schemas import (
    Closed,
    Cursor,
    DelayMs,
    Duration,
    Instant,
    Ms,
    NamePrefix,
    Record,
    Rfc3339,
    Shape,
    TopicName,
    TopicPrefix,
    Zone,
)

JobKind = Literal["redrive", "purge", "cancel", "move", "move-with-expiry", "deliver-now"]


class JobFilter(Closed):
    """For pending messages: topic, key, label, due_from, due_to, topic_prefix and name_prefix, at least one. For dead
    letters also reason, dead_from and dead_to, with at least one time. For a source: topic, topic_prefix, key, reason,
    dead_from and dead_to; to purge a source, only dead_to is allowed."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    topic: TopicName = ""
    key: str = Field(default="", max_length=1_000)
    label: str = Field(default="", max_length=1_000)
    reason: str = Field(default="", max_length=1_000, description="Why it died, exact text.")
    due_from: Instant = Field(default=0, description="Inclusive.")
    due_to: Instant = Field(default=0, description="Exclusive.")
    topic_prefix: TopicPrefix = ""
    name_prefix: NamePrefix = ""
    dead_from: Instant = Field(default=0, description="When it died; inclusive.")
    dead_to: Instant = Field(default=0, description="Exclusive.")


class JobRequest(Closed):
    """Exactly one of filter and ids. A move takes exactly one of deliver_at, deliver_after,
    deliver_after_ms and shift."""

    kind: JobKind
    filter: JobFilter = Field(default_factory=JobFilter)
    ids: list[str] = Field(default_factory=list, min_length=1, max_length=10_000)
    rate: float | None = Field(default=None, ge=0.01, le=1_000_000, description="Messages/s; null: unlimited.")
    dry_run: bool = Field(default=False, description="Only count.")
    topic: TopicName = Field(
        default="",
        description="Target of a redrive; absent: each one's own topic, for `dlq.destination.NAME` the destination's.",
    )
    source: TopicName = Field(default="", description="A topic of dead letters; absent: duemq's own.")
    deliver_at: Instant = 0
    deliver_after: Duration = 0
    deliver_after_ms: DelayMs = 0
    zone: Zone = ""
    shift: str | float = Field(default=0, description="Shift of a move: a duration, negative for earlier.")


class Job(Shape):
    id: str
    kind: JobKind
    state: Literal["running", "paused", "done", "cancelled", "failed"]
    created_at: Rfc3339
    created_at_ms: Ms
    ended_at: Rfc3339 = ""
    ended_at_ms: Ms = 0
    by: str = Field(description="The id of the API key that created it.")
    filter: dict[str, str | int] = Field(description="As given; for listed ids, their number.")
    total: int | None = Field(description="Messages that it applies to; null until all are found.")
    done: int
    skipped: int = Field(description="Messages whose state no longer allows it.")
    failed: int
    skipped_by_reason: dict[str, int]
    failed_by_reason: dict[str, int]
    rate: float | None
    reason: str = Field(description="Why it failed as a whole.")
    topic: str | None
    source: str | None
    active: bool = Field(description="Whether work is in progress; if not, the counts are final.")
    waiting: bool = Field(description="Whether it still waits for a process to run it.")
    deliver_at: Rfc3339 = ""
    deliver_at_ms: Ms = 0
    shift_ms: int = 0


class DryRun(Shape):
    kind: JobKind
    dry_run: Literal[True]
    total: int


class DryRunOrJob(RootModel[DryRun | Job]): ...


class JobList(Shape):
    jobs: list[Job]


class Origin(Shape):
    writer: Literal["duemq", "consumer", "share group", "streams", "connect", "spring"]
    topic: str
    partition: int = Field(description="-1 if unknown; so is offset.")
    offset: int
    reason: str
    error: str
    group: str
    attempts: int


class TopicLetter(Record):
    id: str = Field(description="PARTITION:OFFSET.")
    dead_at: Rfc3339
    dead_at_ms: Ms
    origin: Origin | None = Field(description="Where it came from; null if its headers do not say.")
    redrives: int


class TopicLetters(Shape):
    letters: list[TopicLetter]
    cursor: Cursor | None
