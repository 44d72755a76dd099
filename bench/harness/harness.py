"""The environment for a scenario: a site, a separate topic, and the processes that send and read."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import orjson

from duemq.bench.base.frame_session import PREFIX
from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import BenchWorker, WorkerLink
from duemq.bench.clients import send
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import SendJob, SendWindow, SentMessages
from duemq.bench.harness.progress_bar import ProgressScreen
from duemq.bench.system import delay_files
from duemq.bench.system.server import EmbeddedServer
from duemq.bench.system.system import LAYOUTS, Site, SiteError, SystemLayout, get
from duemq.dev.servers.usage import Neighbours

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_EVERY_S = 0.05
_LINGER_S = 2.0  # waiting for duplicates after the last expected message
_PATIENCE_S = 15.0  # without progress, after the last message was due; then the rest counts as lost
_SETTLED_S = 15.0  # sealing begins once a window has not grown for ten seconds: wait longer


@dataclass(frozen=True, slots=True)
class Setup:
    """The options that all scenarios have. `url`: measure the server at this URL; otherwise each run starts a server,
    with the folder `data` if set.

    `on`: embedded, kafka or kafka3; `shards` and `nodes`: how many the started system has (None: the default);
    `settings`: the started system's other settings, by `section.key`. `traced`: see `SendJob`. `by`: how clients send
    and read.
    """

    url: str | None = None
    data: Path | None = None
    keep: bool = False
    payload_bytes: int = 256
    by: Literal["poll", "events", "frames"] = "poll"
    seed: int = 1
    on: str = "embedded"
    shards: int | None = None
    nodes: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    traced: float | None = None


def _site(setup: Setup) -> Site:
    if setup.on == "embedded":
        return EmbeddedServer(setup.url, setup.data, setup.keep, setup.shards, setup.by, setup.settings)
    from duemq.bench.system.cluster import BenchCluster

    return BenchCluster(layout(setup), setup.data, setup.keep, setup.shards, setup.settings)


def layout(setup: Setup) -> SystemLayout:
    """The layout of the cluster that a setup asks for. Raises KeyError for the embedded bus."""
    chosen = LAYOUTS[setup.on]
    return chosen if setup.nodes is None else replace(chosen, nodes=setup.nodes)


class Harness:
    """A context manager for one run. On entry, the site accepts messages; after the exit, the site and all workers have
    ended."""

    def __init__(self, setup: Setup, screen: ProgressScreen) -> None:
        self.setup, self.screen = setup, screen
        self.site = _site(setup)
        self.topic = f"bench.{secrets.token_hex(6)}"
        self.neighbours = Neighbours()
        self._workers: list[BenchWorker[Any]] = []

    def __enter__(self) -> "Harness":
        with self.screen.phase(f"starting {self.site}" if self.site.own else f"using {self.site}", 1):
            self.site.__enter__()
        try:
            self.site.create_topic(self.topic)
        except BaseException as error:
            self.site.__exit__(type(error), error, error.__traceback__)
            raise
        self.neighbours = Neighbours()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        self.site.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        """The URL by which measuring clients reach the site."""
        return PREFIX + self.site.url if self.setup.by == "frames" else self.site.url

    def job(
        self, count: int, window: SendWindow, keep_every: int = 0, *, keyed: bool = False, labelled: bool = False
    ) -> SendJob:
        """The messages to send to this run's topic."""
        setup = self.setup
        return SendJob(
            self.url, self.topic, count, window, setup.payload_bytes, setup.seed, keep_every,
            keyed=keyed, labelled=labelled, traced=setup.traced,
        )  # fmt: skip

    def spawn(
        self, job: Callable[Concatenate[WorkerLink, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> BenchWorker[R]:
        """Start a process that ends with the harness."""
        worker = BenchWorker(job, *args, **kwargs)
        self._workers.append(worker)
        return worker

    def wait(self, worker: BenchWorker[R], text: str, total: int) -> R:
        """Show a worker's progress until it is done; return its result."""
        with self.screen.phase(text, total) as advance:
            while not worker.poll(_LOOK_EVERY_S):
                advance(worker.count)
                self.hear()
        return worker.result()

    def hear(self) -> None:
        """Receive the output of all workers, because a pipe that is not read fills up and blocks its worker."""
        for worker in self._workers:
            worker.poll()

    def fill(self, job: SendJob, text: str, batch: int = 1000, connections: int = 4) -> SentMessages:
        """Send all messages of a job as fast as the server accepts them."""
        return self.wait(self.spawn(send.fill, job, batch, connections), text, job.count)

    def reader(self, keep_ids: bool = False) -> BenchWorker[ReceivedRecords]:
        """Start a consumer of this run's topic."""
        return self.read(self.topic, keep_ids)

    def read(self, topic: str, keep_ids: bool = False) -> BenchWorker[ReceivedRecords]:
        """Start a consumer of any topic."""
        return self.spawn(self.site.source.read, topic, keep_ids)

    def watch(self, reader: BenchWorker[ReceivedRecords], text: str, total: int, until: Callable[[], bool]) -> None:
        """Show the reader's count until the condition is true. Raises WorkerError if the reader died."""
        with self.screen.phase(text, total) as advance:
            while not until():
                if reader.poll(_LOOK_EVERY_S):
                    reader.result()
                    return
                advance(reader.count)
                self.hear()

    def finish(
        self, reader: BenchWorker[ReceivedRecords], expected: int, last_due_ms: float, text: str = "reading"
    ) -> ReceivedRecords:
        """Wait for all expected messages, and a little longer for duplicates; return the records that were read."""
        last_count, moved_at = -1, time.monotonic()

        def over() -> bool:
            nonlocal last_count, moved_at
            if reader.count != last_count or now_ms() < last_due_ms:
                last_count, moved_at = reader.count, time.monotonic()
            quiet_s = time.monotonic() - moved_at
            return quiet_s > (_LINGER_S if last_count >= expected else _PATIENCE_S)

        self.watch(reader, text, expected, over)
        reader.stop()
        return reader.result()

    def sleep_until(self, at_ms: float, text: str) -> None:
        """Wait until `at_ms`, with a progress bar."""
        total = max(int(at_ms - now_ms()), 0)
        with self.screen.phase(f"{text} (ms)", total) as advance:
            while (left := at_ms - now_ms()) > 0:
                advance(total - int(left))
                time.sleep(min(left / 1000, 0.2))

    def sleep_while(self, condition: Callable[[], bool], within_s: float, text: str) -> None:
        """Check the condition once a second, until it is false. Raises SiteError if it is still true after
        `within_s`."""
        give_up_at = time.monotonic() + within_s
        with self.screen.phase(text, 1):
            while condition():
                if time.monotonic() > give_up_at:
                    raise SiteError(f"{text} took longer than {within_s:.0f} s")
                time.sleep(1)
                self.hear()

    def wait_until_quiet(self, within_s: float = 180.0) -> bool:
        """Wait until the data folder's size has stayed the same (within 1 %) for 15 s without sealing. Returns False if
        this does not happen."""
        size, files, since = self.site.disk_bytes() or 0, 0, time.monotonic()
        give_up_at = since + within_s
        with self.screen.phase("waiting until sealing and compaction have ended", 1):
            while (quiet_s := time.monotonic() - since) < _SETTLED_S and time.monotonic() < give_up_at:
                time.sleep(0.5)
                self.hear()
                self.site.bill()  # includes the processes that seal
                now, far = self.site.disk_bytes() or 0, delay_files.counts(self.site.folder)
                if abs(now - size) > size / 100 or far.work or far.files != files:
                    size, files, since = now, far.files, time.monotonic()
        return quiet_s >= _SETTLED_S

    def missing(self, ids: list[str], at_most: int = 500) -> int:
        """How many messages, in a sample of accepted messages, the site does not report as scheduled."""
        accepted_ids = [each for each in ids if each]  # a refused message has no id
        sample = accepted_ids[:: max(len(accepted_ids) // at_most, 1)]
        return sum(not self._is_scheduled(each) for each in sample)

    def _is_scheduled(self, message: str) -> bool:
        status, body = get(self.site.url, f"/v1/messages/{message}")
        return status == 200 and bool(orjson.loads(body)["status"] == "scheduled")
