"""The shapes of groups, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel

from duemq.model.destinations.pull import DEFAULT_ATTEMPTS, MAX_ATTEMPTS
from duemq.proxy.api.schemas import Closed, Duration, HeaderList, Ms, Problem, Rfc3339, Shape, TopicName

Attempts = Annotated[
    int, Field(ge=1, le=MAX_ATTEMPTS, description="Deliveries before the message becomes a dead letter.")
]
Receipt = Annotated[str, Field(description="Of one delivery, as received.", examples=["0f2a9c81d3e4-1b"])]
Receipts = Annotated[list[Receipt], Field(max_length=1_000)]


class GroupRequest(Closed):
    visibility: Duration = Field(default=30_000, description="How long a received message is hidden from others.")
    attempts: Attempts = DEFAULT_ATTEMPTS
    start: Literal["first", "last"] = Field(
        default="first", description="Of a new group: the oldest kept record, or from now on."
    )


class Group(Shape):
    topic: TopicName
    group: str
    destination: str = Field(description="The name of the group among the destinations.", examples=["orders.billing"])
    state: Literal["active", "paused", "disabled"]
    visibility: int = Field(description="ms.")
    attempts: Attempts
    retry_topic: str
    figures: dict[str, Any] | None = Field(description="The relay's, as of a destination; null: no relay serves it.")


class GroupList(Shape):
    groups: list[Group]


class LeasedRecord(Shape):
    receipt: Receipt
    id: str
    topic: TopicName
    attempt: int = Field(description="The number of this delivery to the group; 1 for the first.")
    lease_ends_at: Rfc3339
    lease_ends_at_ms: Ms
    due_at: Rfc3339 = Field(default="", description="Absent if duemq did not deliver it.")
    due_at_ms: Ms = 0
    key: str | None = None
    key_base64: str = ""
    payload: str | None = ""
    payload_base64: str = Field(default="", description="Replaces payload if that is not UTF-8.")
    headers: dict[str, str | None]
    header_list: HeaderList = Field(default=[], description="All headers in order, if headers cannot express them.")


class LeasedRecords(Shape):
    messages: list[LeasedRecord]


class _Receipts(Closed):
    """Exactly one of receipt and receipts."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["receipt"]}, {"required": ["receipts"]}]})

    receipt: Receipt = ""
    receipts: Receipts = Field(default=[])


class AckRequest(_Receipts): ...


class NackRequest(_Receipts):
    delay: Duration = Field(default=0, description="Until the message comes again; absent: at once.")
    reason: str = Field(default="", max_length=200, description="For the headers of the retry or dead letter.")
    dead_letter: bool = Field(default=False, description="Make it a dead letter; without delay.")


class ExtendRequest(_Receipts):
    visibility: Duration = Field(description="The end of the lease, from now.")


class LeaseResult(Shape):
    receipt: Receipt
    status: Literal["acked", "nacked", "dead", "extended"]


class EndedLease(Shape):
    receipt: Receipt
    error: Problem


class LeaseResults(Shape):
    results: list[LeaseResult | EndedLease] = Field(description="In the order of the receipts.")


class LeaseAnswer(RootModel[LeaseResult | LeaseResults]): ...
