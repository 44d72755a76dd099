"""The sending side: batches on a fixed schedule, batches as fast as they are accepted, or single POSTs."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.base.session import JSON, TROUBLE, Session, now_ms, session
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.payloads import Payloads

REJECTED, ACCEPTED, OPEN = 0, 1, 2  # a message's outcome from its sender's view; open: no answer

EVERY_MS = 20.0
LATE_SEND_MS = 5.0
_RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class SendWindow:
    """Due times that are drawn uniformly from [low, high) ms. If the two are equal, all due times are `low`."""

    low_ms: int
    high_ms: int

    def draw(self, random: np.random.Generator, count: int, base_ms: int = 0) -> npt.NDArray[np.int64]:
        """`count` due times, epoch ms. The window is relative to `base_ms`."""
        return base_ms + random.integers(self.low_ms, max(self.high_ms, self.low_ms + 1), count)


@dataclass(frozen=True, slots=True)
class SendJob:
    """The messages that a sending process must send: `count` messages, with the sequence numbers 0 to count - 1.

    `keep_every`: keep each n-th id; 0 keeps none. `traced`: the share of messages with a sampled trace context; the
    others have an unsampled one. None: no message has a trace context.
    """

    url: str
    topic: str
    count: int
    window: SendWindow
    payload_bytes: int = 256
    seed: int = 1
    keep_every: int = 0
    named: bool = False
    traced: float | None = None
    keyed: bool = False
    labelled: bool = False
    topics: int = 0

    def topic_of(self, seq: int) -> str:
        """The topic of message `seq`. With `topics`, messages go to that many numbered topics in turn."""
        return f"{self.topic}.{seq % self.topics}" if self.topics else self.topic

    def key(self, seq: int) -> str:
        """A text that is the key of message `seq` if messages are `keyed`, and its label if they are `labelled`."""
        return f"{self.topic}.{seq}"

    def name(self, seq: int) -> str:
        """The name of message `seq` if messages are `named`."""
        return f"{self.topic}.{seq}"


@dataclass(frozen=True, slots=True)
class SentMessages:
    """The outcome of all messages.

    By sequence number: `dues` (epoch ms), `outcome`, and every n-th of the `ids`. By request: the time of the answer
    (epoch ms), the duration (ms), and the number of messages. `problem` is the first rejection or failure.
    """

    dues: npt.NDArray[np.int64]
    outcome: npt.NDArray[np.int8]
    ids: list[str]
    answered_ms: npt.NDArray[np.float64]
    wait_ms: npt.NDArray[np.float64]
    size: npt.NDArray[np.int64]
    began_ms: float
    ended_ms: float
    late_sends: int
    retries: int
    problem: str | None

    @property
    def accepted(self) -> int:
        """The number of messages that the server accepted."""
        return int(np.count_nonzero(self.outcome == ACCEPTED))

    @property
    def seconds(self) -> float:
        """The seconds from the first request to the last answer."""
        return max((self.ended_ms - self.began_ms) / 1000, 1e-6)

    @property
    def rate(self) -> float:
        """The number of messages accepted per second."""
        return self.accepted / self.seconds


@dataclass(slots=True)
class _Sender:
    """Builds and sends the requests of one sending process, and records the answers."""

    job: SendJob
    http: Session
    link: WorkerLink
    payloads: Payloads = field(init=False)
    random: np.random.Generator = field(init=False)
    dues: npt.NDArray[np.int64] = field(init=False)
    outcome: npt.NDArray[np.int8] = field(init=False)
    ids: list[str] = field(default_factory=list)
    requests: list[tuple[float, float, int]] = field(default_factory=list)
    done: int = 0
    late_sends: int = 0
    retries: int = 0
    problem: str | None = None

    def __post_init__(self) -> None:
        self.payloads = Payloads(self.job.payload_bytes, self.job.seed)
        self.random = np.random.default_rng(self.job.seed + 1)
        self.dues = np.zeros(self.job.count, np.int64)
        self.outcome = np.full(self.job.count, OPEN, np.int8)
        every = self.job.keep_every
        self.ids = [""] * (-(-self.job.count // every) if every else 0)

    def drafts(self, first: int, count: int, base_ms: int) -> list[dict[str, Any]]:
        dues = self.job.window.draw(self.random, count, base_ms)
        self.dues[first : first + count] = dues
        topic_of = self.job.topic_of
        drafts: list[dict[str, Any]] = [
            {"topic": topic_of(seq), "payload": payload, "deliver_at": due}
            for seq, payload, due in zip(
                range(first, first + count), self.payloads.make(first, count), dues.tolist(), strict=True
            )
        ]
        if self.job.named:
            for seq, draft in enumerate(drafts, first):
                draft["name"] = self.job.name(seq)
        if self.job.keyed:
            for seq, draft in enumerate(drafts, first):
                draft["key"] = self.job.key(seq)
        if self.job.labelled:
            for seq, draft in enumerate(drafts, first):
                draft["labels"] = [self.job.key(seq)]
        if self.job.traced is not None:
            sampled = self.random.random(count) < self.job.traced
            for draft, flag in zip(drafts, sampled.tolist(), strict=True):
                trace = f"{self.random.integers(1, 1 << 62):032x}-{self.random.integers(1, 1 << 62):016x}"
                draft["headers"] = {"traceparent": f"00-{trace}-{flag:02x}"}
        return drafts

    async def batch(self, first: int, count: int, base_ms: int = 0, again: bool = False) -> None:
        """Send one batch. `again`: if the server asks the client to try again later, retry, as a patient producer
        does."""
        body = orjson.dumps({"messages": self.drafts(first, count, base_ms)})
        await self._post("/v1/messages:batch", body, first, count, again)

    async def single(self, seq: int) -> None:
        body = orjson.dumps(self.drafts(seq, 1, 0)[0])
        await self._post("/v1/messages", body, seq, 1, again=True)

    async def _post(self, path: str, body: bytes, first: int, count: int, again: bool) -> None:
        while True:
            began = now_ms()
            try:
                async with self.http.post(path, data=body, headers=JSON) as answer:
                    text = await answer.read()
            except TROUBLE as error:
                self._note(f"{type(error).__name__}: {error}")
                return
            if not (again and answer.status in (429, 503)):
                break
            self.retries += 1
            await asyncio.sleep(_RETRY_S)
        ended = now_ms()
        self.requests.append((ended, ended - began, count))
        if answer.status >= 300:
            self.outcome[first : first + count] = REJECTED
            self._note(f"HTTP {answer.status} {text[:200].decode(errors='replace')}")
            return
        self._book(orjson.loads(text), first, count)
        self.done += count
        self.link.progress(self.done)

    def _book(self, document: dict[str, Any], first: int, count: int) -> None:
        results = document.get("results", [document])
        self.outcome[first : first + count] = ACCEPTED
        every = self.job.keep_every
        for seq, receipt in enumerate(results, first):
            if "error" in receipt:
                self.outcome[seq] = REJECTED
                self._note(str(receipt["error"])[:200])
            elif every and seq % every == 0:
                self.ids[seq // every] = receipt["id"]

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def sent(self, began_ms: float) -> SentMessages:
        columns = np.array(self.requests, np.float64).reshape(-1, 3)
        ended = float(columns[:, 0].max()) if len(columns) else now_ms()
        return SentMessages(
            dues=self.dues,
            outcome=self.outcome,
            ids=self.ids,
            answered_ms=columns[:, 0],
            wait_ms=columns[:, 1],
            size=columns[:, 2].astype(np.int64),
            began_ms=began_ms,
            ended_ms=ended,
            late_sends=self.late_sends,
            retries=self.retries,
            problem=self.problem,
        )


async def send_steadily(
    link: WorkerLink, job: SendJob, rate: float, every_ms: float = EVERY_MS, connections: int = 64
) -> SentMessages:
    """Open loop: send a batch at fixed intervals, whether or not earlier batches were answered.

    Due times are relative to the time at which the batch should be sent. Batches that are sent more than 5 ms late are
    counted.
    """
    async with session(job.url, connections) as http:
        sender = _Sender(job, http, link)
        loop = asyncio.get_running_loop()
        start, began_ms, every_s = loop.time() + 0.1, now_ms() + 100, every_ms / 1000
        async with asyncio.TaskGroup() as tasks:
            first, tick = 0, 0
            while first < job.count and not link.stopped.is_set():
                until = min(int((tick + 1) * rate * every_s), job.count)
                at_s = tick * every_s
                if (ahead := start + at_s - loop.time()) > 0:
                    await asyncio.sleep(ahead)
                if until > first:
                    sender.late_sends += (loop.time() - start - at_s) * 1000 > LATE_SEND_MS
                    tasks.create_task(sender.batch(first, until - first, int(began_ms + at_s * 1000)), name="batch")
                first, tick = until, tick + 1
        return sender.sent(began_ms)


async def fill(link: WorkerLink, job: SendJob, batch: int = 1000, connections: int = 4) -> SentMessages:
    """Closed loop: send batches as fast as the server accepts them."""
    async with session(job.url, connections) as http:
        sender = _Sender(job, http, link)
        starts = iter(range(0, job.count, batch))
        began_ms = now_ms()
        await _together(
            connections, starts, lambda first: sender.batch(first, min(batch, job.count - first), again=True)
        )
        return sender.sent(began_ms)


async def send_singly(link: WorkerLink, job: SendJob, connections: int = 32) -> SentMessages:
    """Closed loop: send one POST per message, over `connections` connections."""
    async with session(job.url, connections) as http:
        sender = _Sender(job, http, link)
        began_ms = now_ms()
        await _together(connections, iter(range(job.count)), sender.single)
        return sender.sent(began_ms)


async def _together(lanes: int, work: Iterable[int], do: Callable[[int], Any]) -> None:
    async def lane() -> None:
        for item in work:
            await do(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(lanes):
            tasks.create_task(lane(), name="lane")
