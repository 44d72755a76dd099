"""Destinations beyond the log: systems that a relay sends the messages of topics to.

A declaration has everything but secrets. Those are `Credentials`, a separate item that is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from duemq.model.destinations.body import check_body
from duemq.model.destinations.http import HttpOptions, check_names
from duemq.model.destinations.http_headers import legal_value
from duemq.model.destinations.nats import NatsOptions, read_user_key
from duemq.model.destinations.pull import PULL, PullOptions, split_name
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.model.destinations.redis import RedisOptions
from duemq.model.destinations.rejection import UrlError, rejection
from duemq.model.destinations.rocketmq import RocketMqOptions
from duemq.model.destinations.secrets import check_signing_secret
from duemq.model.errors import Rejected
from duemq.model.settings import IN_MS, reader
from duemq.model.timing import parse_duration, shown
from duemq.model.topics.group_topics import retry_topic
from duemq.model.topics.rules import RESERVED_TOPICS, TOPIC, TOPIC_RULE
from duemq.model.topics.topic_names import is_of_another

OWN_TOPIC: Final = "destination."
"""`destination.NAME` is the topic of messages for the destination NAME alone."""
MAX_TOPICS: Final = 50
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET_BYTES: Final = 6 << 10


class System(StrEnum):
    """What kind of system a destination is."""

    HTTP = "http"
    RABBITMQ = "rabbitmq"
    NATS = "nats"
    REDIS = "redis"
    ROCKETMQ = "rocketmq"
    PULL = "pull"
    """No other system: workers receive the messages over HTTP (ADR 91)."""


_SYSTEMS: Final[Mapping[str, System]] = {
    "http": System.HTTP, "https": System.HTTP, "amqp": System.RABBITMQ, "amqps": System.RABBITMQ,
    "nats": System.NATS, "tls": System.NATS, "redis": System.REDIS, "rediss": System.REDIS,
    "rocketmq": System.ROCKETMQ, "rocketmqs": System.ROCKETMQ,
    "pull": System.PULL,
}  # fmt: skip
_OPTIONS: Final[Mapping[System, type[BaseModel]]] = {
    System.HTTP: HttpOptions, System.RABBITMQ: RabbitMqOptions, System.NATS: NatsOptions, System.REDIS: RedisOptions,
    System.ROCKETMQ: RocketMqOptions, System.PULL: PullOptions,
}  # fmt: skip
Options = HttpOptions | RabbitMqOptions | NatsOptions | RedisOptions | RocketMqOptions | PullOptions


_Number = Annotated[int, Field(strict=True)]
# As everywhere in the API, digits in quotes are not a duration.
_Duration = Annotated[
    int, reader(lambda text: parse_duration(text, "it")),
    Field(strict=True, ge=0, examples=["30s"]), IN_MS,
]  # fmt: skip
_Switch = Annotated[bool, Field(strict=True)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "levels": ("kind", "retries", "first_level"), "delays": ("kind", "delays"),
    "exponential": ("kind", "retries", "first", "factor", "most"),
}  # fmt: skip
"""The fields of a retry rule that a kind uses."""


class RetryRule(_Declared):
    """When a message is tried again, and how often. `levels`: RocketMQ's, from 10 s to 2 h. `delays`: these, in order.
    `exponential`: `first`, then `factor` times as long each time, at most `most`. Fields of another kind are refused,
    and not shown."""

    kind: Literal["levels", "delays", "exponential"] = "levels"
    retries: Annotated[_Number, Field(ge=0, le=100)] = 16
    first_level: Annotated[_Number, Field(ge=1, le=18)] = 3
    delays: Annotated[tuple[_Duration, ...], Field(max_length=100, examples=[["1s", "1m"]])] = ()
    first: Annotated[_Duration, Field(ge=1)] = 1_000
    factor: Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)] = 2.0
    most: Annotated[_Duration, Field(ge=1)] = 7_200_000

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in type(self).model_fields:
            if name in self.model_fields_set and name not in _OF_KIND[self.kind]:
                kinds = " or ".join(kind for kind, names in _OF_KIND.items() if name in names)
                other = f"here it is {self.kind}" if "kind" in self.model_fields_set else "give the kind, too"
                raise ValueError(f"{name} goes with kind {kinds}; {other}")
        if self.kind == "delays" and not self.delays:
            raise ValueError('kind delays needs delays, such as ["1s", "1m"]')
        return self

    @property
    def attempts(self) -> int:
        """Deliveries of a message, before it becomes a dead letter."""
        return 1 + (len(self.delays) if self.kind == "delays" else self.retries)

    @model_serializer(mode="wrap")
    def _only_of_kind(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name in _OF_KIND[self.kind]}


class Destination(_Declared):
    """A declaration. `rate`: messages/s, 0 = any. `concurrency`: messages in flight; 0 = what suits the system.

    `topics`: their messages are sent to it, too, like those of `own_topic`. `ordered`: messages with the same key go
    one after another; a failing one holds up only its key.
    `disabled`: why it is disabled (a sentence); else empty. `start_id`: changes each time its group is set to a start,
    after which it may receive records again. It begins with the `instance` and a dot, unless a node of version 0.1.0
    wrote it, and contains the time (`began_at`).
    """

    name: str
    url: Annotated[str, Field(examples=["https://example.com/hooks"])]
    topics: Annotated[tuple[str, ...], Field(max_length=MAX_TOPICS, examples=[["orders"]])] = ()
    rate: Annotated[_Number, Field(ge=0, le=1_000_000)] = 0
    concurrency: Annotated[_Number, Field(ge=0, le=5_000)] = 0
    timeout: Annotated[_Duration, Field(ge=10, le=600_000)] = 10_000
    ordered: _Switch = False
    retry: Annotated[RetryRule, Field(examples=[{"kind": "delays", "delays": ["1s", "1m"]}])] = RetryRule()
    options: Options = Field(default_factory=HttpOptions)
    paused: _Switch = False
    disabled: Annotated[str, Field(max_length=500)] = ""
    start_id: Annotated[str, Field(max_length=64)] = ""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if "." in name:
            split_name(name)
        elif not _NAME.fullmatch(name):
            raise ValueError("a name has 1 to 64 characters of A-Z a-z 0-9 _ -")
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url == PULL:
            return url
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"it is no URL: {error}") from error
        if parts.scheme not in _SYSTEMS:
            schemes = ", ".join(scheme for scheme in _SYSTEMS if scheme != System.PULL)
            raise ValueError(f"its scheme is one of {schemes}, such as https://example.com/hooks")
        if len(url) > 2_000 or not url.isascii() or any(character <= " " for character in url) or "\\" in url:
            raise ValueError("it has up to 2,000 ASCII characters, without spaces and backslashes")
        if not parts.hostname:
            raise ValueError("it names no host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("it has no user and password: they are credentials, which are given apart")
        return url

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            if not TOPIC.fullmatch(topic):
                raise ValueError(f"a topic {TOPIC_RULE}, not {shown(topic)}")
            if topic.startswith(RESERVED_TOPICS) or is_of_another(topic):
                raise ValueError(f"{topic} is one of duemq's own topics")
        return tuple(dict.fromkeys(topics))

    @model_validator(mode="before")
    @classmethod
    def _choose_options(cls, fields: Any) -> Any:
        """Options depend on the URL's system."""
        if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
            return fields
        system = _SYSTEMS.get(fields["url"].partition(":")[0])
        options = fields.get("options", {})
        if system is None or not isinstance(options, dict):
            return fields
        return fields | {"options": _OPTIONS[system].model_validate(options)}

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        is_group = self.system is System.PULL
        if is_group != ("." in self.name):
            raise UrlError(f"a group is named TOPIC.GROUP and has the URL {PULL}; no other name has a dot")
        if is_group and (self.topics != (split_name(self.name)[0],) or self.rate or self.ordered):
            raise UrlError("a group TOPIC.GROUP has one topic, TOPIC, no rate and no order")
        return self

    @model_validator(mode="after")
    def _check_url_of_system(self) -> Self:
        if isinstance(self.options, RedisOptions | RocketMqOptions):
            try:
                self.options.check_url(self.url)
            except ValueError as error:
                raise UrlError(str(error)) from error
        return self

    @property
    def system(self) -> System:
        return _SYSTEMS[urlsplit(self.url).scheme]

    @property
    def own_topic(self) -> str:
        """The topic of the messages for this destination alone."""
        return OWN_TOPIC + self.name

    @property
    def group(self) -> str:
        """The consumer group that hands messages on to it."""
        return OWN_TOPIC + self.name

    @property
    def retry_topic(self) -> str:
        """The topic of messages that it did not take."""
        return retry_topic(self.group)

    @property
    def instance(self) -> str:
        """Tells it apart from a removed destination of the same name. Empty if a node of version 0.1.0 declared it."""
        instance, dot, _ = self.start_id.partition(".")
        return instance if dot else ""

    @property
    def began_at(self) -> int | None:
        """When its group was last set to a start, epoch ms: it may have skipped earlier deliveries. None if an earlier
        version set it."""
        at, dash, _ = self.start_id.partition(".")[2].partition("-")
        return int(at, 16) if dash else None

    @property
    def active(self) -> bool:
        return not self.paused and not self.disabled

    def value(self) -> dict[str, Any]:
        """As an item of the administrative state, and as it is shown."""
        return self.model_dump(mode="json", exclude_defaults=False)


class Credentials(_Declared):
    """What opens a destination. PEM texts for `ca`, `cert` and `key`.

    `signing_secrets`: of Standard Webhooks, `whsec_…` (symmetric) or `whsk_…` (ed25519), at most two: the first signs;
    the second signs too until receivers know the first. `headers`: secret HTTP headers. `creds`: for NATS, the text of
    a `.creds` file, or the seed of a user's nkey.
    """

    username: str = ""
    password: SecretStr = SecretStr("")
    token: SecretStr = SecretStr("")
    signing_secrets: Annotated[tuple[SecretStr, ...], Field(max_length=2)] = ()
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    creds: SecretStr = SecretStr("")
    ca: str = ""
    cert: str = ""
    key: SecretStr = SecretStr("")

    @field_validator("signing_secrets")
    @classmethod
    def _check_signing_secrets(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for secret in secrets:
            check_signing_secret(secret.get_secret_value())
        return secrets

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        check_names(headers)
        for name, value in headers.items():
            if not legal_value(value.get_secret_value()):
                raise ValueError(f"the value of {name} has visible ASCII characters, and spaces only between them")
        return headers

    @field_validator("creds")
    @classmethod
    def _check_creds(cls, creds: SecretStr) -> SecretStr:
        if creds:
            read_user_key(creds.get_secret_value())
        return creds

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: SecretStr) -> SecretStr:
        if not legal_value(token.get_secret_value()):
            raise ValueError("it has visible ASCII characters, and spaces only between them")
        return token

    def value(self) -> dict[str, Any]:
        """As an item of the administrative state: with its secrets, as plain text."""

        def plain(value: Any) -> Any:
            if isinstance(value, SecretStr):
                return value.get_secret_value()
            if isinstance(value, tuple):
                return [plain(each) for each in value]
            if isinstance(value, Mapping):
                return {name: plain(each) for name, each in value.items()}
            return value

        return {
            name: plain(value)
            for name, value in self
            if value != type(self).model_fields[name].get_default(call_default_factory=True)
        }

    @property
    def names(self) -> list[str]:
        """The names of those that are given."""
        return sorted(self.value())


def read_destination(fields: Mapping[str, Any]) -> Destination:
    """Raises Rejected `bad_field` or `unknown_field`, which names the field and its rule."""
    url, options = fields.get("url"), fields.get("options")
    system = _SYSTEMS.get(url.partition(":")[0]) if isinstance(url, str) else None
    if system is not None and options is not None:
        try:
            given = _OPTIONS[system].model_validate(options)
        except ValidationError as error:
            raise rejection(error, _OPTIONS[system], "options") from None
        if isinstance(given, HttpOptions):
            try:
                check_body(given.body, given.content_type)  # only here: older declarations stay readable
            except ValueError as error:
                raise Rejected("bad_field", f"options.body: {error}", "options.body") from None
    try:
        return Destination.model_validate(dict(fields))
    except ValidationError as error:
        raise rejection(error, Destination) from None


def read_credentials(fields: Mapping[str, Any]) -> Credentials:
    """As `read_destination`; the error reveals none of the values."""
    try:
        credentials = Credentials.model_validate(dict(fields))
    except ValidationError as error:
        raise rejection(error, Credentials, "credentials") from None
    if len(repr(credentials.value())) > _SECRET_BYTES:
        raise Rejected("bad_field", f"credentials have up to {_SECRET_BYTES:,} bytes in all", "credentials")
    return credentials
