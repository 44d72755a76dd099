"""The shapes of destinations, for the OpenAPI document only: requests are checked in `model/destinations/`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from duemq.model.destinations.destination import MAX_TOPICS
from duemq.proxy.api.schemas import Closed, Duration, Shape, TopicName

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$", examples=["billing"])]
Url = Annotated[
    str,
    Field(
        max_length=2_000, examples=["https://example.com/hooks", "amqps://mq:5671/%2F"],
        description="http(s), amqp(s), nats, tls (NATS), redis(s) or rocketmq(s); without user and password.",
    ),
]  # fmt: skip
Topics = Annotated[
    list[TopicName], Field(max_length=MAX_TOPICS, description="Messages delivered into these are sent, too.")
]
Rate = Annotated[int, Field(ge=0, le=1_000_000, description="Messages/s; 0: any.")]
Concurrency = Annotated[int, Field(ge=0, le=5_000, description="Messages in flight; 0: the default of the system.")]
Start = Annotated[
    Literal["last", "first"],
    Field(description="For new topics: from now on, or from the oldest kept record on."),
]
Options = Annotated[dict[str, Any], Field(description="Those of its system: see docs/guides/destinations.md.")]


class RetryRule(Closed):
    """levels: RocketMQ's, from first_level on. delays: these, in order. exponential: first, then factor times as long
    each time, at most `most`."""

    kind: Literal["levels", "delays", "exponential"] = "levels"
    retries: int = Field(default=16, ge=0, le=100, description="After the first attempt.")
    first_level: int = Field(default=3, ge=1, le=18)
    delays: list[Duration] = Field(default=[], max_length=100)
    first: Duration = 0
    factor: float = Field(default=2.0, ge=1, le=100)
    most: Duration = 0


class Credentials(Closed):
    """Never shown again. PEM texts for ca, cert and key."""

    username: str = ""
    password: str = ""
    token: str = ""
    signing_secrets: list[str] = Field(
        default=[], max_length=2, description="Of Standard Webhooks: the first signs, during a rotation both do."
    )
    headers: dict[str, str] = Field(default={}, description="HTTP headers with secret values.")
    creds: str = Field(default="", description="Of NATS: the text of a .creds file, or the seed of a user's nkey.")
    ca: str = ""
    cert: str = ""
    key: str = ""


class _Declared(Closed):
    topics: Topics = Field(default=[])
    rate: Rate = 0
    concurrency: Concurrency = 0
    timeout: Duration = 0
    ordered: bool = Field(default=False, description="Messages with the same key one after another.")
    retry: RetryRule = RetryRule()
    options: Options = Field(default={})
    credentials: Credentials = Credentials()
    start: Start = "last"


class DestinationRequest(_Declared):
    name: Name
    url: Url
    paused: bool = False
    replace: bool = Field(default=False, description="Replace one of the same name.")


class DestinationChange(_Declared):
    """Each field is replaced as a whole."""

    url: Url = ""


class DestinationState(Shape):
    model_config = ConfigDict(title="Destination")

    name: str = Field(description="TOPIC.GROUP for a group.")
    url: str
    system: Literal["http", "rabbitmq", "nats", "redis", "rocketmq", "pull"]
    state: Literal["active", "paused", "disabled"]
    topic: str = Field(
        description="The topic of messages for this destination alone.", examples=["destination.billing"]
    )
    group: str = Field(description="The consumer group that sends the messages.")
    topics: list[str]
    rate: int
    concurrency: int
    timeout: int = Field(description="ms.")
    ordered: bool
    retry: dict[str, Any] = Field(description="The fields of its kind, durations in ms.")
    options: dict[str, Any]
    paused: bool
    disabled: str = Field(description="Why it is disabled; empty if it is not.")
    credentials: list[str] = Field(description="The names of those that are set.", examples=[["password", "username"]])
    figures: dict[str, Any] | None = Field(
        description="The relays' figures since their start; null: no relay serves it."
    )


class DestinationList(Shape):
    destinations: list[DestinationState]


class SystemReply(Shape):
    result: Literal["accepted", "failed", "rejected", "away", "gone"]
    status: str = Field(description="The answer as a short code.", examples=["200"])
    detail: str = Field(description="The first characters of it.")
    took_ms: float
