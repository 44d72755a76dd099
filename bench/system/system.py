"""The system under test: a server on the embedded bus, or a cluster on Kafka. Scenarios use both in the same way."""

import http.client
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from duemq.bench.base.session import trusted
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.reader import ReceivedRecords
from duemq.dev.servers.usage import Bill


class SiteError(RuntimeError):
    """The system did not start or stop, or the scenario may not stop it."""


@dataclass(frozen=True, slots=True)
class SystemLayout:
    """The number of processes of each kind in a cluster."""

    brokers: int
    zookeepers: int
    nodes: int
    proxies: int = 1

    def __str__(self) -> str:
        counts = {"broker": self.brokers, "ZooKeeper server": self.zookeepers, "node": self.nodes}
        named = [f"{number} {name}{'s' * (number > 1)}" for name, number in counts.items()]
        return ", ".join([*named, "1 proxy" if self.proxies == 1 else f"{self.proxies} proxies"])


LAYOUTS = {"kafka": SystemLayout(1, 1, 1), "kafka3": SystemLayout(3, 3, 3)}


class CountSource(Protocol):
    """Reads delivered messages. It is a frozen value that can be sent to another process."""

    async def read(self, link: WorkerLink, topic: str, keep_ids: bool = False) -> ReceivedRecords:
        """Read `topic` from its start until the request to stop, then read the remaining records."""
        ...


class Site(Protocol):
    """A context manager. On entry, the system accepts messages at `url`; after the exit, every process that it started
    has ended.

    `start`, `stop` and `kill` apply to the processes that deliver: the server, or every node in a cluster. A cluster's
    brokers and proxies keep running. All methods block; they raise SiteError.
    """

    url: str
    own: bool  # the bench started it, so a scenario may stop and measure it
    accepts_while_stopped: bool
    bootstrap: str | None  # addresses of its Kafka brokers

    @property
    def source(self) -> CountSource: ...

    @property
    def folder(self) -> Path | None:
        """The folder with the waiting messages (of one node); None for a foreign system."""
        ...

    def __enter__(self) -> "Site": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, settings: Mapping[str, str] | None = None) -> float:
        """Start the processes that deliver; return the seconds until they were ready.

        `settings`, by `section.key`, apply from now on, in addition to earlier settings.
        """
        ...

    def start_empty(self) -> dict[str, float]:
        """Restart one of our processes of each kind with an empty folder; return the seconds until each was ready."""
        ...

    def stop(self) -> None:
        """Send SIGTERM, and wait."""
        ...

    def kill(self) -> None:
        """Send SIGKILL, which has the effect of a crash or an out-of-memory kill."""
        ...

    @property
    def shards(self) -> int:
        """The number of shards in the system that the bench started."""
        ...

    def kill_broker(self, number: int) -> None:
        """Send SIGKILL to one Kafka broker, which stays dead. Raises SiteError if the bench started no brokers."""
        ...

    def create_topic(self, topic: str) -> None:
        """Create a topic for deliveries."""
        ...

    def bill(self) -> Bill | None:
        """The CPU seconds and memory of every process, over all its runs; None for a foreign system."""
        ...

    def disk_bytes(self) -> int | None:
        """The disk space, in bytes, of the folder; None for a foreign system."""
        ...

    def __str__(self) -> str:
        """A description of the system's parts."""
        ...


def get(url: str, path: str) -> tuple[int, bytes]:
    """Send one GET on a new connection. Returns status and body, or (0, b"") if there is no answer."""
    return _ask("GET", url, path)


def post(url: str, path: str) -> None:
    """Send one POST without a body. Raises SiteError if it is refused."""
    status, body = _ask("POST", url, path)
    if not 200 <= status < 300:
        raise SiteError(f"POST {path} was answered by {status}: {body[:200].decode(errors='replace')}")


def _ask(method: str, url: str, path: str) -> tuple[int, bytes]:
    place = urllib.parse.urlsplit(url).netloc
    context = trusted(url)
    connection = (
        http.client.HTTPConnection(place, timeout=5)
        if isinstance(context, bool)
        else http.client.HTTPSConnection(place, timeout=5, context=context)
    )
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def ready(url: str, within_s: float) -> bool:
    """Wait until `/readyz` answers 200; return False if it does not within `within_s`."""
    deadline = time.monotonic() + within_s
    while get(url, "/readyz")[0] != 200:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def free_port() -> int:
    """A free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
