"""A network that can be cut: relays between the processes of a local cluster, told from here what passes."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process
from tests.chaos.network.sources import OTHERS

_READY_WITHIN_S = 300.0
_ANSWERS_WITHIN_S = 10.0
_ROOT = Path(__file__).parents[3]


class Network:
    """Processes are known by their names (`kafka-1`, `node-2`); `OTHERS` are those outside of the cluster.

    Give `reached_at` to the cluster when it is made, `start` before it, and `close` after it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._routes: dict[int, tuple[str, int]] = {}
        self._control = free_port()
        self._cut: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        plan = self._folder / "network.json"
        self._relay = Process(
            "network", [sys.executable, "-P", "-m", "tests.chaos.network.relay", str(plan)],
            self._folder / "network.log",
            environment={**os.environ, "PYTHONPATH": str(_ROOT)},
        )  # fmt: skip
        self._plan = plan

    def reached_at(self, server: str, port: int) -> int:
        """The port by which others reach this port of a server."""
        for outside, route in self._routes.items():
            if route == (server, port):
                return outside
        outside = free_port()
        self._routes[outside] = (server, port)
        return outside

    def start(self, processes: Mapping[str, Process]) -> None:
        """Come back when connections are relayed. `processes` by name need not run yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = {str(process.log.resolve()): name for name, process in processes.items()}
        self._plan.write_text(json.dumps({"names": names, "routes": self._routes, "control": self._control}))
        self._relay.start()
        self._relay.until(lambda: is_open(self._control), _READY_WITHIN_S)
        self._tell()

    def close(self) -> None:
        self._relay.kill()

    # --- what passes ----------------------------------------------------------------------------------------------

    def cut(self, some: Iterable[str], others: Iterable[str], *, both_ways: bool = True) -> None:
        """From now on nothing passes from `some` to `others`, or between them. Connections stay open in silence."""
        for source in some:
            for target in others:
                self._cut.add((source, target))
                if both_ways:
                    self._cut.add((target, source))
        self._tell()

    def slow(self, some: Iterable[str], others: Iterable[str], seconds: float) -> None:
        """From now on traffic from `some` to `others` is delayed this much; the way back is as fast as before."""
        self._delays |= {(source, target): seconds for source in some for target in others}
        self._tell()

    def heal(self) -> None:
        """All traffic passes again, and held data arrives."""
        self._cut.clear()
        self._delays.clear()
        self._tell()

    def _tell(self) -> None:
        delays = [(source, target, seconds) for (source, target), seconds in self._delays.items()]
        line = json.dumps({"cut": sorted(self._cut), "delays": delays}).encode()
        with socket.create_connection((HOST, self._control), timeout=_ANSWERS_WITHIN_S) as connection:
            connection.sendall(line + b"\n")
            assert connection.recv(16) == b"done\n", self._relay.last_words()


__all__ = ["OTHERS", "Network"]
