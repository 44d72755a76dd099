"""The sections of the settings, their defaults and bounds.

Durations are held as ms unless the name ends in `_s`, sizes as bytes. In the file and the environment both may be
text ("24h", "8MiB"), and lists text with commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from duemq.delay.topics import INTERNAL
from duemq.model.errors import Rejected
from duemq.model.timing import CLASSIC_LEVELS, parse_duration, parse_levels, shown
from duemq.proxy.ingress import TOPIC
from duemq.storage.object_store import is_object, wrong_uri
from duemq.storage.rows import WINDOW_MS

_PATTERN = re.compile(r"[A-Za-z0-9._*?!\[\]-]{1,249}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)
_LISTEN = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", re.ASCII)
_API_KEY = re.compile(r"[!-+\--~]{8,}")  # in the environment, commas stand between them
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")
_BYTE_SIZE = TypeAdapter(ByteSize)

KIB, MIB = 1 << 10, 1 << 20


def _reader(read: Callable[[str], Any]) -> BeforeValidator:
    """Reads text with `read`; other values are left to the field's own type."""

    def validate(value: object) -> object:
        try:
            return read(value) if isinstance(value, str) else value
        except Rejected as error:
            raise ValueError(error.detail) from error

    return BeforeValidator(validate)


def _duration(text: str) -> int:
    return parse_duration(text, "it", text=True)


def _size(text: str) -> int:
    try:
        return int(_BYTE_SIZE.validate_python(text))
    except ValidationError as error:
        raise ValueError("it is not a size such as 1048576, 64KiB or 8MiB") from error


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _delays(text: str) -> tuple[int, ...]:
    return parse_levels(text.replace(",", " "), "it")


def no_switch(value: object) -> object:
    # Every setting is a number, a text or a list, and pydantic would take `true` for 1.
    if isinstance(value, bool):
        raise ValueError("it is no switch")
    return value


Duration = Annotated[int, _reader(_duration), Field(ge=0)]
Size = Annotated[int, _reader(_size), Field(ge=0)]
Percent = Annotated[int, Field(ge=1, le=100)]
Words = Annotated[tuple[str, ...], _reader(_words)]
Delays = Annotated[tuple[Duration, ...], _reader(_delays), Field(min_length=1)]


def host_and_port(listen: str) -> str:
    """The address, if it is one. Raises ValueError."""
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[1]) > 65_535:
        raise ValueError("it must be HOST:PORT, such as 127.0.0.1:8787 or [::1]:8787")
    return listen


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    _no_switches = field_validator("*", mode="before")(no_switch)


class LimitSettings(Section):
    """What a producer may ask for."""

    max_delay: Annotated[Duration, Field(ge=1000, le=_duration("1000y"))] = _duration("10y")
    max_payload_bytes: Annotated[Size, Field(ge=1, le=64 * MIB)] = MIB
    max_headers: Annotated[int, Field(ge=0, le=1024)] = 64
    max_headers_bytes: Annotated[Size, Field(le=16 * MIB)] = 64 * KIB
    max_key_bytes: Annotated[Size, Field(le=60 * KIB)] = 32 * KIB
    max_batch_items: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_batch_bytes: Annotated[Size, Field(ge=KIB, le=1024 * MIB)] = 32 * MIB


class TimingSettings(Section):
    levels: Delays = _delays(CLASSIC_LEVELS)
    past_due: Literal["deliver", "reject"] = "deliver"


class TopicSettings(Section):
    allowed: Words = ()
    partitions: Annotated[int, Field(ge=0, le=1024)] = 1
    dead_letter: str = "duemq.dlq"

    @field_validator("allowed")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{shown(pattern)} is neither a topic nor a pattern such as orders.*")
        return patterns

    @field_validator("dead_letter")
    @classmethod
    def _topic(cls, name: str) -> str:
        if not TOPIC.fullmatch(name):
            raise ValueError("a topic has 1 to 249 characters of A-Z a-z 0-9 . _ -")
        if name in INTERNAL:
            raise ValueError("this topic is duemq's own")
        return name


class DeliverySettings(Section):
    max_cycle_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    max_cycle_bytes: Annotated[Size, Field(ge=64 * KIB, le=1024 * MIB)] = 8 * MIB
    max_attempts: Annotated[int, Field(ge=1, le=65_535)] = 16
    retry_delays: Delays = _delays("1s 5s 10s 30s 1m")


class StorageSettings(Section):
    write_buffer_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    cache_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    flush_interval_s: Annotated[float, Field(gt=0, le=3600)] = 5
    flush_bytes: Annotated[Size, Field(ge=64 * KIB)] = 32 * MIB
    history_retention: Duration = _duration("24h")
    min_history: Annotated[Duration, Field(ge=60_000)] = _duration("10m")
    clean_mode: Literal["continuous", "off_peak"] = "continuous"
    clean_at: str = "04:00"
    clean_percent: Percent = 75
    shorten_percent: Percent = 85
    refuse_percent: Percent = 90
    min_free_bytes: Size = 256 * MIB

    @field_validator("clean_at")
    @classmethod
    def _time(cls, time: str) -> str:
        if not _TIME.fullmatch(time):
            raise ValueError("it must be HH:MM, from 00:00 to 23:59 (UTC)")
        return time

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.clean_percent <= self.shorten_percent <= self.refuse_percent:
            raise ValueError(
                f"clean_percent ({self.clean_percent}), shorten_percent ({self.shorten_percent}) and refuse_percent "
                f"({self.refuse_percent}) must not descend"
            )
        return self


class FarSettings(Section):
    """See `FarPolicy`."""

    seal_rows: Annotated[int, Field(ge=1)] = 5_000
    seal_windows: Annotated[int, Field(ge=1, le=10_000)] = 2
    rewrite_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    load_ahead: Annotated[Duration, Field(ge=60_000, le=_duration("24h"))] = _duration("10m")
    adopt_from: Words = ()
    adopt_patience: Annotated[Duration, Field(ge=0, le=86_400_000)] = _duration("1m")
    adopt_copies: Annotated[int, Field(ge=0, le=32)] = 0
    s3_endpoint: str = ""
    s3_region: Annotated[str, Field(pattern=r"^([a-z0-9-]{1,64})?$")] = ""
    s3_access_key: str = ""
    s3_secret_key: Annotated[str, Field(repr=False)] = ""

    @field_validator("load_ahead")
    @classmethod
    def _not_sealed_again(cls, load_ahead: int, given: ValidationInfo) -> int:
        nearest = given.data.get("seal_windows", 1) * WINDOW_MS
        if load_ahead > nearest:
            raise ValueError(
                f"at most 30 minutes for each of far.seal_windows, here {nearest} ms: "
                "a window would be sealed again as soon as it was loaded"
            )
        return load_ahead

    @field_validator("adopt_from")
    @classmethod
    def _absolute(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if is_object(folder):
                if (wrong := wrong_uri(folder, prefix=True)) is not None:
                    raise ValueError(f"{folder!r}: {wrong}")
            elif not folder.startswith("/"):
                raise ValueError(f"{folder!r} must be an absolute path, or s3://BUCKET/PREFIX")
        return folders

    @field_validator("s3_endpoint")
    @classmethod
    def _is_origin(cls, endpoint: str) -> str:
        if endpoint and not _ORIGIN.fullmatch(endpoint):
            raise ValueError("it must be the origin of a store, such as https://minio.example.com:9000")
        return endpoint

    @model_validator(mode="after")
    def _whole_login(self) -> Self:
        if bool(self.s3_access_key) != bool(self.s3_secret_key):
            raise ValueError("s3_access_key and s3_secret_key go together")
        return self


class EmbeddedSettings(Section):
    retention: Annotated[Duration, Field(ge=60_000)] = _duration("7d")
    tail_bytes: Annotated[Size, Field(ge=MIB)] = 32 * MIB
    gather_ms: Annotated[float, Field(ge=0, le=1000)] = 8


class KafkaSettings(Section):
    """See `KafkaOptions`."""

    bootstrap: Words = ()
    replication_factor: Annotated[int, Field(ge=1, le=32)] = 1
    min_insync_replicas: Annotated[int, Field(ge=1, le=32)] = 1
    retention: Annotated[Duration, Field(ge=60_000)] = _duration("7d")
    max_message_bytes: Annotated[Size, Field(ge=64 * KIB, le=256 * MIB)] = 8 * MIB
    tail_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    gather_ms: Annotated[float, Field(ge=0, le=1000)] = 4
    request_timeout_ms: Annotated[int, Field(ge=500, le=120_000)] = 6_000
    transaction_timeout_ms: Annotated[int, Field(ge=1_000, le=900_000)] = 10_000
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class ZooKeeperSettings(Section):
    """See `ZooKeeperOptions`."""

    hosts: Words = ()
    chroot: str = "/duemq"
    session_timeout_s: Annotated[float, Field(ge=1, le=120)] = 6
    user: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    acl: Literal["open", "creator"] = "open"
    tls: Literal["off", "on"] = "off"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    strategy: Literal["consistent_hash", "average", "circle", "same_rack"] = "consistent_hash"


class NodeSettings(Section):
    """`name` and `advertise` empty: this machine's host name, and the host it listens on."""

    name: str = ""
    rack: str = ""
    listen: str = "127.0.0.1:8788"
    link_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    advertise: str = ""
    token: Annotated[str, Field(repr=False)] = ""
    max_clock_offset_ms: Annotated[int, Field(ge=10, le=60_000)] = 500

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str) -> str:
        return host_and_port(listen)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if name and not _NODE.fullmatch(name):
            raise ValueError("a node's name has 1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or digit")
        return name


class ProxySettings(Section):
    selection: Literal["by_key", "round_robin", "least_latency"] = "by_key"


class TestingSettings(Section):
    """Faults on order, for the chaos suite. `die_at`: STEP:N, kill -9 of itself at a step of the N-th cycle."""

    die_at: Annotated[str, Field(pattern=r"^((before_commit|in_transaction|after_commit):[1-9]\d{0,8})?$")] = ""


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(","))  # an empty one is a variable that should have held a secret


class HttpSettings(Section):
    api_keys: Annotated[tuple[str, ...], _reader(_keys), Field(repr=False)] = ()
    hosts: Words = ()
    origins: Words = ()
    answer_timeout_ms: Annotated[int, Field(ge=1, le=600_000)] = 2000
    max_wait_s: Annotated[float, Field(ge=0, le=3600)] = 60
    shutdown_grace_s: Annotated[float, Field(ge=0, le=3600)] = 10
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    max_requests: Annotated[int, Field(ge=1)] = 4096
    max_inflight_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    max_head_bytes: Annotated[Size, Field(ge=8 * KIB)] = 256 * KIB
    head_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    write_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30
    keep_alive_s: Annotated[float, Field(gt=0, le=3600)] = 75
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 0

    @field_validator("api_keys")
    @classmethod
    def _are_secret(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if not _API_KEY.fullmatch(key):
                raise ValueError("a key has 8 or more printable characters of ASCII, without blanks and commas")
        return keys

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{shown(host)} is neither a name such as duemq.example.com nor *.example.com")
        return hosts

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{shown(origin)} is no origin such as https://app.example.com")
        return origins
