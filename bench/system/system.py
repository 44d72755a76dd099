"""What a scenario runs against: a server on the embedded bus, or a cluster on Kafka. Scenarios do not ask which."""

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
from duemq.bench.clients.reader import Received
from duemq.dev.servers.usage import Bill


class SiteError(RuntimeError):
    """The system did not start, did not stop, or is not one that this scenario may stop."""


@dataclass(frozen=True, slots=True)
class SystemLayout:
    """How many processes of each kind make a cluster."""

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
    """Where delivered messages are read. A frozen value that can be sent to another process."""

    async def read(self, link: WorkerLink, topic: str, keep_ids: bool = False) -> Received:
        """Read `topic` from its start until told to stop, then whatever is still there."""
        ...


class Site(Protocol):
    """A context manager: entered, it takes messages at `url`; left, all that it started is gone.

    `start`, `stop` and `kill` concern the processes that deliver: the server, or every node of a cluster, whose
    brokers and proxies go on. All methods block; they raise SiteError.
    """

    url: str
    own: bool  # started by the bench, so a scenario may stop and weigh it
    accepts_while_stopped: bool
    bootstrap: str | None  # of the Kafka brokers below it

    @property
    def source(self) -> CountSource: ...

    @property
    def folder(self) -> Path | None:
        """Where waiting messages are held (of one node); None for a system that is not ours."""
        ...

    def __enter__(self) -> "Site": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, settings: Mapping[str, str] | None = None) -> float:
        """Start what delivers; returns the seconds until it said that it was ready.

        `settings`, by `section.key`, hold from now on, beside those it had.
        """
        ...

    def start_empty(self) -> dict[str, float]:
        """Stop one process of each kind of ours, empty its folder, and start it; the seconds until each was ready."""
        ...

    def stop(self) -> None:
        """SIGTERM, and wait."""
        ...

    def kill(self) -> None:
        """SIGKILL: what a crash or an out-of-memory kill does."""
        ...

    @property
    def shards(self) -> int:
        """Of what the bench started."""
        ...

    def kill_broker(self, number: int) -> None:
        """SIGKILL to one Kafka broker, which stays dead. Raises SiteError where there are none of ours."""
        ...

    def create_topic(self, topic: str) -> None:
        """Make a topic that messages can be delivered to."""
        ...

    def bill(self) -> Bill | None:
        """CPU s and memory of every process, over all its lives; None for a system that is not ours."""
        ...

    def disk_bytes(self) -> int | None:
        """Allocated bytes of the folder; None for a system that is not ours."""
        ...

    def __str__(self) -> str:
        """What it is made of, in words."""
        ...


def get(url: str, path: str) -> tuple[int, bytes]:
    """One GET on a connection of its own: status and body, or (0, b"") when nobody answers."""
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
    """A TCP port on the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
