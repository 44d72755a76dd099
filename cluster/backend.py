"""What a gateway works with: a node in the same process, or the log, its ledger and the nodes elsewhere."""

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
    """Its parts are asked for anew by every call: a node opens its bus and shards anew after a failure."""

    @property
    def shards(self) -> int:
        """How many there are."""
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
        """What relative times count from, and absolute ones are judged by: epoch ms."""
        ...

    @property
    def delivering(self) -> Callable[[], int]:
        """What messages without delay are delivered by, epoch ms: never ahead of the clock that stamps their records,
        the producer's or the broker's."""
        ...

    def why_clock_out(self) -> str | None:
        """Why no relative times can be taken just now, in a sentence; see `ClockWatch`."""
        ...

    def progress(self, shard: int) -> Progress:
        """How far a shard has come. Raises Unavailable where that is not known here."""
        ...

    def why_closed(self) -> str | None:
        """Why no request can be served just now, in a sentence."""
        ...

    def why_not_ready(self) -> str | None:
        """Why messages are not accepted or not delivered just now, in a sentence."""
        ...

    def readiness(self) -> Readiness:
        """The same in public words, by shard too."""
        ...

    def stuck(self) -> Mapping[int, float]:
        """For how long (s) shards of this process have been stuck; see `Liveness`."""
        ...

    def why_shard_refuses(self, shard: int) -> str | None:
        """Why no new message can go through a shard, in a sentence."""
        ...

    def refuse(self) -> None:
        """Raises DiskFull where no new message can be taken."""
        ...

    def count_direct(self, messages: int) -> None:
        """Count messages that went straight to their topics."""
        ...

    def lateness(self, topic: str) -> dict[str, Any]:
        """Count and lateness (ms) of a topic's deliveries, as far as this process made them."""
        ...

    def trouble(self, topic: str) -> str | None:
        """What is wrong with a topic, in a sentence; None if nothing is known to be."""
        ...

    def troubles(self) -> dict[str, str]:
        """Topics that refuse messages, a few of them, each with a sentence."""
        ...

    def cluster(self) -> dict[str, Any]: ...

    async def figures(self) -> Sequence[Figures]:
        """What the nodes measure of themselves; those that do not answer are missing."""
        ...

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        """The windows with delay files that begin at `first` (epoch ms) or later, earliest first."""
        ...

    @property
    def operator(self) -> Operator: ...


class NoCluster:
    """The operator of a single node."""

    async def drain(self, name: str) -> None:
        raise self._rejection()

    async def resume(self, name: str) -> None:
        raise self._rejection()

    def _rejection(self) -> Rejected:
        return Rejected("not_supported", "this is a single node: there is no other one to hand over to")
