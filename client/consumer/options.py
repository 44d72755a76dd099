"""How a consumer behaves. All of it has a default that suits a service with one or a few processes."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from duemq.client.consumer.retry.headers import ERRORS
from duemq.client.consumer.retry.policy import Levels, Policy
from duemq.model.errors import Rejected

# What a consumer decides itself: otherwise it would skip messages, or give handlers something else than bytes.
_OWN: Final = frozenset((
    "bootstrap_servers", "group_id", "enable_auto_commit", "auto_offset_reset", "isolation_level", "loop",
    "partition_assignment_strategy", "key_deserializer", "value_deserializer", "enable_idempotence", "acks",
    "max_request_size", "transactional_id", "key_serializer", "value_serializer",
))  # fmt: skip


class Mode(StrEnum):
    """Whom the messages of a group are for."""

    CLUSTERING = "clustering"
    """Each message is for one member."""
    BROADCASTING = "broadcasting"
    """Each message is for every member."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Times in s, sizes in bytes. Raises Rejected `bad_option`, naming the field and the limit."""

    concurrency: int = 32
    """Messages that handlers have at once, in this process."""
    per_key: int | None = None
    """Messages of one key at once; None = as many as there are."""
    ordered: bool = False
    """The messages of a key in their order: one at once, and a retry in place, which suspends that key only."""
    mode: Mode | str = Mode.CLUSTERING
    start: datetime | int | str = "last"
    """Where a group begins that has no offset: `first`, `last` (what comes from now on), or a time (aware, or epoch
    ms)."""
    retry: Policy = field(default_factory=Levels)
    tell_errors: str = "text"
    """What is told of an error that a handler raised, in the headers of the message that goes back and in the log:
    `text`, or only its `class` where texts may hold secrets, such as the address of a database with its password."""
    log_retries: bool = True
    """Whether each message that comes back is a line of the log. Dead letters always are."""
    timeout_s: float = 60.0
    """The time for one message in a handler. What takes longer has failed. A blocking handler cannot be stopped, and
    goes on."""
    max_in_hand: int = 4_000
    """Messages pulled and not done. More are not fetched until there is room again, nor while as many are done whose
    offsets could not be stored yet."""
    max_in_hand_bytes: int = 64 << 20
    commit_interval_s: float = 5.0
    """Offsets are stored at the latest after this, with each pull when they moved, and at the end."""
    commit_pause_s: float = 0.0
    """With a pause, offsets are also stored whenever messages are done, this long apart: a crash brings back what was
    done within it."""
    stop_s: float = 30.0
    """How long a stop, or a partition that goes to another member, waits for handlers that run."""
    rack: str = ""
    allocation: str = "average"
    """`average`, `circle`, `consistent_hash` or `same_rack`: which member gets which partitions."""
    offsets_folder: Path | str | None = None
    """Where a broadcasting member keeps its offsets. Default: `~/.duemq/offsets`."""
    member: str = ""
    """The name of this member, for a broadcasting one also that of its offsets. Default: the host's name."""
    buffer_topic: str = "duemq.buffer"
    retry_partitions: int = 4
    """Partitions of the topics for retries, where they have to be made."""
    instance: str = ""
    """Tells the group from an earlier one of the same name: what the earlier one sent back becomes a dead
    letter. Empty: any is taken."""
    session_s: float = 30.0
    """After so long without a sign of life a member's partitions go to others."""
    kafka: Mapping[str, Any] = field(default_factory=dict)
    """More arguments for aiokafka's clients: `security_protocol`, `ssl_context`, `sasl_mechanism` and so on. Each
    client gets those it knows; what none of them knows is refused, and so is what a consumer decides itself."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_in_hand", "max_in_hand_bytes", "retry_partitions"):
            _above(name, getattr(self, name), 0)
        for name in ("timeout_s", "commit_interval_s", "session_s"):
            _above(name, getattr(self, name), 0)
        if self.commit_pause_s < 0:
            raise Rejected(
                "bad_option", f"commit_pause_s is {self.commit_pause_s}; it must be at least 0", "commit_pause_s"
            )
        if self.per_key is not None:
            _above("per_key", self.per_key, 0)
        if self.ordered and self.per_key not in (None, 1):
            raise Rejected("bad_option", f"per_key is {self.per_key}; an ordered consumer has 1", "per_key")
        if self.tell_errors not in ERRORS:
            raise Rejected(
                "bad_option", f"tell_errors is {self.tell_errors!r}; it is one of {', '.join(ERRORS)}", "tell_errors"
            )
        if self.mode not in tuple(Mode):
            raise Rejected("bad_option", f"mode is {self.mode!r}; it is one of {', '.join(Mode)}", "mode")
        if isinstance(self.start, str) and self.start not in ("first", "last"):
            raise Rejected("bad_option", f"start is {self.start!r}; it is first, last or a time", "start")
        if isinstance(self.start, datetime) and self.start.utcoffset() is None:
            raise Rejected("bad_option", f"start has no zone: {self.start}; add tzinfo, such as datetime.UTC", "start")
        names = _all_option_names() if self.kafka else frozenset[str]()
        for name in self.kafka:
            if name in _OWN:
                raise Rejected("bad_option", f"kafka has {name!r}, which a consumer decides itself", "kafka")
            if name not in names:
                raise Rejected("bad_option", f"kafka has {name!r}, which no client of aiokafka knows", "kafka")
        if self.broadcasting:
            _ = self.folder

    @property
    def broadcasting(self) -> bool:
        return self.mode == Mode.BROADCASTING

    @property
    def keys_at_once(self) -> int | None:
        """Messages of one key at once."""
        return 1 if self.ordered else self.per_key

    @property
    def name(self) -> str:
        """The name of this member."""
        return self.member or socket.gethostname()

    @property
    def folder(self) -> Path:
        """Where a broadcasting member keeps its offsets."""
        if self.offsets_folder is not None:
            return Path(self.offsets_folder)
        try:
            return Path.home() / ".duemq" / "offsets"
        except RuntimeError as error:
            detail = "a broadcasting member keeps its offsets in a file, and this user has no home: set offsets_folder"
            raise Rejected("bad_option", detail, "offsets_folder") from error

    def kafka_of(self, client: type) -> dict[str, Any]:
        """The arguments in `kafka` that this client of aiokafka knows."""
        names = _option_names(client)
        return {name: value for name, value in self.kafka.items() if name in names}


def _all_option_names() -> frozenset[str]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # a consumer of another log needs no Kafka client
    from aiokafka.admin import AIOKafkaAdminClient

    clients = (AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)
    return frozenset().union(*map(_option_names, clients))


def _option_names(client: type) -> frozenset[str]:
    return frozenset(inspect.signature(client).parameters) - {"topics"}


def _above(name: str, value: float, bound: float) -> None:
    if value <= bound:
        raise Rejected("bad_option", f"{name} is {value}; it must be above {bound}", name)
