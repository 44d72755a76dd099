"""The shape of a story, for the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duemq.proxy.api.schemas import Ms, Rfc3339, Shape, Status, TopicName


class StoryPlace(Shape):
    """Where the record of a message is in its topic."""

    partition: int
    offset: int


class StoryEvent(Shape):
    """failed: an attempt was refused. dead: the reader gave up on the message. redriven: a job scheduled the dead
    letter again, as the message `id`."""

    event: Literal["failed", "dead", "redriven"]
    at: Rfc3339
    at_ms: Ms
    error: str = Field(default="", description="The answer.")
    left_out_after: int = Field(default=0, description="Failed attempts after this one that are not kept.")
    reason: str = Field(default="", description="Of a dead letter, such as retries or rejected.")
    topic: TopicName = Field(default="", description="Of the dead letter, or of the redriven message.")
    letter: str | None = Field(default=None, description="Of a dead letter: PARTITION:OFFSET; null: it is not kept.")
    id: str = ""
    status: Status = "scheduled"
    job: str | None = None
    by: str | None = Field(default=None, description="The caller who created the job.")


class StoryRetry(Shape):
    """A pending retry: a message with its own id."""

    id: str
    number: int = Field(description="1: the first retry.")
    status: Status
    deliver_at: Rfc3339
    deliver_at_ms: Ms


class StoryReader(Shape):
    """One reader's outcome. accepted: a destination accepted the message, or a group read past it without a failure.
    waiting: the message was not sent yet. retrying: it waits for `retry`. cancelled: the retry was cancelled. unknown:
    `detail` says why."""

    group: str
    destination: str | None = Field(description="Null for a group of consumers.")
    state: Literal["accepted", "waiting", "retrying", "dead", "redriven", "cancelled", "unknown"]
    detail: str = Field(description="Why it waits, or is unknown; else empty.")
    events: list[StoryEvent] = Field(description="Oldest first.")
    retry: StoryRetry | None


class RedrivenFrom(Shape):
    id: str | None = Field(description="Of the message that died.")
    letter: str = Field(description="TOPIC/PARTITION/OFFSET of the dead letter.")


class Story(Shape):
    id: str
    status: Status
    topic: TopicName
    place: StoryPlace | None = Field(description="Null: it is not delivered, or its record is not kept or not found.")
    readers: list[StoryReader] = Field(description="Destinations, and groups of consumers, that read the topic.")
    hidden_readers: bool = Field(description="Whether there may be readers that this key may not see.")
    complete: bool = Field(description="False: a complete answer would cost too many reads.")
    return_of: str | None = Field(description="The message that a reader sent back as this one.")
    redriven_from: RedrivenFrom | None
