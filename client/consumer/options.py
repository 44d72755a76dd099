"""How a consumer behaves. The defaults suit a service with one or a few processes."""

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

# Set by the consumer itself: other values would skip messages, or pass handlers something other than bytes.
_OWN: Final = frozenset((
    "bootstrap_servers", "group_id", "enable_auto_commit", "auto_offset_reset", "isolation_level", "loop",
    "partition_assignment_strategy", "key_deserializer", "value_deserializer", "enable_idempotence", "acks",
    "max_request_size", "transactional_id", "key_serializer", "value_serializer",
))  # fmt: skip


class Mode(StrEnum):
    """Which members of a group get a message."""

    CLUSTERING = "clustering"
    """Each message goes to one member."""
    BROADCASTING = "broadcasting"
    """Each message goes to every member."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Times are in s, sizes in bytes. Raises Rejected `bad_option`, with the field and its limit."""

    concurrency: int = 32
    """How many messages are handled at once, in this process."""
    per_key: int | None = None
    """How many messages with the same key are handled at once; None = no limit."""
    ordered: bool = False
    """Handle messages with the same key in order, one at a time. A failed message is retried in this process, and only
    its key is suspended until then."""
    mode: Mode | str = Mode.CLUSTERING
    start: datetime | int | str = "last"
    """The starting point for a group without offsets: `first`, `last` (only messages from now on), or a time (an aware
    datetime, or epoch ms)."""
    retry: Policy = field(default_factory=Levels)
    tell_errors: str = "text"
    """How much of a handler's error is written to the headers of a retried message and to the log: its `text`, or only
    its `class` if texts may contain secrets, such as a database address with its password."""
    log_retries: bool = True
    """Whether each retried message is logged. Dead letters are always logged."""
    timeout_s: float = 60.0
    """Time limit for handling one message. A message that exceeds it has failed. A blocking handler cannot be stopped
    and keeps running."""
    max_in_hand: int = 4_000
    """How many messages may be pulled and not done. At this limit, fetching waits for room. Fetching also waits while
    this number of messages is done but not stored as done."""
    max_in_hand_bytes: int = 64 << 20
    commit_interval_s: float = 5.0
    """Offsets are stored at least this often, with each pull if they moved, and at the end."""
    commit_pause_s: float = 0.0
    """If it is above 0, offsets are also stored as soon as messages are done, with at least this pause in between: a
    crash brings back only messages done within the last pause."""
    stop_s: float = 30.0
    """How long running handlers may take to finish at a stop, or when their partition moves to another member."""
    rack: str = ""
    allocation: str = "average"
    """How partitions are distributed among members: `average`, `circle`, `consistent_hash` or `same_rack`."""
    offsets_folder: Path | str | None = None
    """The folder for a broadcasting member's offsets. Default: `~/.duemq/offsets`."""
    member: str = ""
    """The name of this member; a broadcasting member's offsets are stored under it, too. Default: the host's name."""
    buffer_topic: str = "duemq.buffer"
    retry_partitions: int = 4
    """With how many partitions a retry topic is created."""
    instance: str = ""
    """Distinguishes the group from an earlier group with the same name: messages that the earlier group sent back
    become dead letters. Empty: accept messages from any instance."""
    session_s: float = 30.0
    """If a member sends no heartbeat for this time, its partitions are assigned to other members."""
    kafka: Mapping[str, Any] = field(default_factory=dict)
    """More arguments for aiokafka's clients: `security_protocol`, `ssl_context`, `sasl_mechanism` and so on. Each
    client gets those that it accepts. Arguments that no client accepts, or that a consumer sets itself, are refused."""

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
            raise Rejected("bad_option", f"start is {self.start!r}; use first, last or a time", "start")
        if isinstance(self.start, datetime) and self.start.utcoffset() is None:
            raise Rejected("bad_option", f"start has no zone: {self.start}; add tzinfo, such as datetime.UTC", "start")
        names = _all_option_names() if self.kafka else frozenset[str]()
        for name in self.kafka:
            if name in _OWN:
                raise Rejected("bad_option", f"kafka has {name!r}, which a consumer sets itself", "kafka")
            if name not in names:
                raise Rejected("bad_option", f"kafka has {name!r}, which no client of aiokafka knows", "kafka")
        if self.broadcasting:
            _ = self.folder

    @property
    def broadcasting(self) -> bool:
        return self.mode == Mode.BROADCASTING

    @property
    def keys_at_once(self) -> int | None:
        """How many messages with the same key are handled at once; None = no limit."""
        return 1 if self.ordered else self.per_key

    @property
    def name(self) -> str:
        """The name of this member."""
        return self.member or socket.gethostname()

    @property
    def folder(self) -> Path:
        """The folder for a broadcasting member's offsets."""
        if self.offsets_folder is not None:
            return Path(self.offsets_folder)
        try:
            return Path.home() / ".duemq" / "offsets"
        except RuntimeError as error:
            detail = "a broadcasting member stores its offsets in a file, and this user has no home: set offsets_folder"
            raise Rejected("bad_option", detail, "offsets_folder") from error

    def kafka_of(self, client: type) -> dict[str, Any]:
        """The arguments in `kafka` that this aiokafka client accepts."""
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
