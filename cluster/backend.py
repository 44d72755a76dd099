"""The interface between a gateway and its cluster, which is a node in the same process, or the log, its ledger and
remote nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from duemq.bus.base import Bus
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.progress import Progress
from duemq.cluster.shards.shard_reader import ShardReader
from duemq.cluster.shards.view import Operator
from duemq.cluster.topics.topic_states import TopicStates
from duemq.model.errors import Rejected
from duemq.model.messages.ids import IdCodec
from duemq.model.readiness import Readiness

DISK_FULL_RETRY_S = 10


class Backend(Protocol):
    """Callers fetch its parts again for every call, because a node reopens its bus and shards after a failure."""

    @property
    def shards(self) -> int:
        """The number of shards."""
        ...

    @property
    def bus(self) -> Bus: ...
    @property
    def ids(self) -> IdCodec: ...
    @property
    def topic_states(self) -> TopicStates: ...
    @property
    def reader(self) -> ShardReader: ...
    @property
    def clock(self) -> Callable[[], int]:
        """The clock for relative times, and for checks of absolute times, epoch ms."""
        ...

    @property
    def delivering(self) -> Callable[[], int]:
        """The clock for messages without delay, epoch ms. It is never ahead of the clock that stamps their records (the
        producer's or the broker's)."""
        ...

    def why_clock_out(self) -> str | None:
        """Why relative times are currently not accepted, in a sentence; see `ClockWatch`."""
        ...

    def progress(self, shard: int) -> Progress:
        """The progress of a shard. Raises Unavailable if this process does not have it."""
        ...

    def why_closed(self) -> str | None:
        """Why no request can currently be served, in a sentence."""
        ...

    def why_not_ready(self) -> str | None:
        """Why messages are currently not accepted or not delivered, in a sentence."""
        ...

    def readiness(self) -> Readiness:
        """The same, in words that may be public, and by shard."""
        ...

    def stuck(self) -> Mapping[int, float]:
        """How long (s) shards of this process have been stuck; see `Liveness`."""
        ...

    def why_shard_refuses(self, shard: int) -> str | None:
        """Why a shard accepts no new message, in a sentence."""
        ...

    def refuse(self) -> None:
        """Raises DiskFull if no new message can be accepted."""
        ...

    def count_direct(self, messages: int) -> None:
        """Count messages that went straight to their topics."""
        ...

    def lateness(self, topic: str) -> dict[str, Any]:
        """The number and the lateness (ms) of this process's deliveries to a topic."""
        ...

    def trouble(self, topic: str) -> str | None:
        """A topic's problem, in a sentence; None if none is known."""
        ...

    def troubles(self) -> dict[str, str]:
        """Some of the topics that refuse messages, each with a sentence."""
        ...

    def cluster(self) -> dict[str, Any]: ...

    async def figures(self) -> Sequence[Figures]:
        """The nodes' figures; nodes that do not answer are left out."""
        ...

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        """The windows that have delay files and begin at `first` (epoch ms) or later, earliest first."""
        ...

    @property
    def operator(self) -> Operator: ...


class NoCluster:
    """The `Operator` for a single node without a cluster."""

    async def drain(self, name: str) -> None:
        raise self._rejection()

    async def resume(self, name: str) -> None:
        raise self._rejection()

    def _rejection(self) -> Rejected:
        return Rejected("not_supported", "this is a single node: there is no other one to hand over to")
