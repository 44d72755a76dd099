"""The system under test: a server on the embedded bus, or a cluster on Kafka. Scenarios treat both alike."""

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
    """The system did not start or stop, or this scenario may not stop it."""


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
    """Reads delivered messages. A frozen value that can be sent to another process."""

    async def read(self, link: WorkerLink, topic: str, keep_ids: bool = False) -> ReceivedRecords:
        """Read `topic` from its start until told to stop, then the remaining records."""
        ...


class Site(Protocol):
    """A context manager: entered, it accepts messages at `url`; left, everything it started has ended.

    `start`, `stop` and `kill` apply to the processes that deliver: the server, or every node of a cluster, whose
    brokers and proxies keep running. All methods block; they raise SiteError.
    """

    url: str
    own: bool  # started by the bench, so a scenario may stop and measure it
    accepts_while_stopped: bool
    bootstrap: str | None  # of its Kafka brokers

    @property
    def source(self) -> CountSource: ...

    @property
    def folder(self) -> Path | None:
        """Folder of the waiting messages (of one node); None for a foreign system."""
        ...

    def __enter__(self) -> "Site": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, settings: Mapping[str, str] | None = None) -> float:
        """Start the delivering processes; returns the seconds until they were ready.

        `settings`, by `section.key`, apply from now on, in addition to earlier ones.
        """
        ...

    def start_empty(self) -> dict[str, float]:
        """Restart one of our processes of each kind with an empty folder; returns the seconds until each was ready."""
        ...

    def stop(self) -> None:
        """SIGTERM, and wait."""
        ...

    def kill(self) -> None:
        """SIGKILL: what a crash or an out-of-memory kill does."""
        ...

    @property
    def shards(self) -> int:
        """Shards of the system that the bench started."""
        ...

    def kill_broker(self, number: int) -> None:
        """SIGKILL to one Kafka broker, which stays dead. Raises SiteError if there are none of ours."""
        ...

    def create_topic(self, topic: str) -> None:
        """Create a topic for deliveries."""
        ...

    def bill(self) -> Bill | None:
        """CPU s and memory of every process, over all its runs; None for a foreign system."""
        ...

    def disk_bytes(self) -> int | None:
        """Allocated bytes of the folder; None for a foreign system."""
        ...

    def __str__(self) -> str:
        """A description of its parts."""
        ...


def get(url: str, path: str) -> tuple[int, bytes]:
    """One GET on a new connection: status and body, or (0, b"") without an answer."""
    return _ask("GET", url, path)


def post(url: str, path: str) -> None:
    """One POST without a body. Raises SiteError if it is refused."""
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
    """Wait until `/readyz` answers 200; False if it never did."""
    deadline = time.monotonic() + within_s
    while get(url, "/readyz")[0] != 200:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def free_port() -> int:
    """A free TCP port on the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
