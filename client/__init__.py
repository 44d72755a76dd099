"""The Python SDK: `Client` and, for asyncio, `AsyncClient`. See `docs/sdk.md`."""

from typing import TYPE_CHECKING, Any

from duemq.client.http import errors
from duemq.client.http.client import Client, Message
from duemq.client.http.errors import (
    AlreadyCancelled,
    AlreadyDead,
    AlreadyDelivered,
    BatchInterrupted,
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
    Record,
    RecordPage,
    Shard,
    Topic,
)
from duemq.model.errors import DuemqError

if TYPE_CHECKING:
    from duemq.client.http.aio import AsyncClient, AsyncMessage

__all__ = [
    "ABSENT",
    "AlreadyCancelled",
    "AlreadyDead",
    "AlreadyDelivered",
    "AsyncClient",
    "AsyncMessage",
    "BatchInterrupted",
    "CancelReport",
    "CancelResult",
    "Cancelled",
    "Client",
    "Cluster",
    "Draft",
    "DuemqError",
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
    # The command line would pay for importing asyncio with every call and never uses it.
    if name in ("AsyncClient", "AsyncMessage"):
        from duemq.client.http import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
