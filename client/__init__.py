"""The Python SDK: `Client` for senders and readers, `Admin` for operators; `AsyncClient` and `AsyncAdmin` for asyncio.
See `docs/guides/sdk.md`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duemq.client.http import errors
from duemq.client.http.blocking.admin import Admin
from duemq.client.http.blocking.client import Client
from duemq.client.http.blocking.group import Group
from duemq.client.http.blocking.message import Message
from duemq.client.http.errors import (
    AlreadyCancelled,
    AlreadyDead,
    AlreadyDelivered,
    BatchInterrupted,
    LeaseEnded,
    NaiveTimeError,
    NameTaken,
    NotSupported,
    PendingError,
    RejectedError,
    Unavailable,
    UnknownMessage,
    UnknownNode,
    UnknownTopic,
    Unreachable,
)
from duemq.client.http.requests import ABSENT, Draft
from duemq.client.http.times import EpochMs
from duemq.client.http.values import (
    Cancelled,
    CancelReport,
    CancelResult,
    Cluster,
    Limits,
    MessageChange,
    MessageState,
    MoveReport,
    MoveResult,
    Node,
    ReceivedMessage,
    Record,
    RecordPage,
    Shard,
    Topic,
)
from duemq.model.errors import DuemqError

if TYPE_CHECKING:
    from duemq.client.http.aio.admin import AsyncAdmin
    from duemq.client.http.aio.client import AsyncClient
    from duemq.client.http.aio.group import AsyncGroup
    from duemq.client.http.aio.message import AsyncMessage

__all__ = [
    "ABSENT",
    "Admin",
    "AlreadyCancelled",
    "AlreadyDead",
    "AlreadyDelivered",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncGroup",
    "AsyncMessage",
    "BatchInterrupted",
    "CancelReport",
    "CancelResult",
    "Cancelled",
    "Client",
    "Cluster",
    "Draft",
    "DuemqError",
    "EpochMs",
    "Group",
    "LeaseEnded",
    "Limits",
    "Message",
    "MessageChange",
    "MessageState",
    "MoveReport",
    "MoveResult",
    "NaiveTimeError",
    "NameTaken",
    "Node",
    "NotSupported",
    "PendingError",
    "ReceivedMessage",
    "Record",
    "RecordPage",
    "RejectedError",
    "Shard",
    "Topic",
    "Unavailable",
    "UnknownMessage",
    "UnknownNode",
    "UnknownTopic",
    "Unreachable",
    "errors",
]


def __getattr__(name: str) -> Any:
    # Imported on demand: the command line never uses asyncio, and the import would slow down each of its calls.
    if name in ("AsyncAdmin", "AsyncClient", "AsyncGroup", "AsyncMessage"):
        return getattr(import_module(f"duemq.client.http.aio.{name.removeprefix('Async').lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
