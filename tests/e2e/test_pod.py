"""A pod's life without Kubernetes: the server is process 1, of a user without a name, on a disk that it cannot write.

Only its data folder can be written. Its environment tells of twelve services, and of things that are none of its own.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Self

import httpx
import psutil
import pytest

from tests.e2e.server import DUEMQ, Server, run, wait_for
from tests.support.kubernetes.namespaces import need_namespaces
from tests.support.patience import PROCESS_S

UID = 12345  # OpenShift chooses one, and adds the group 0
SERVICES = (
    "duemq", "duemq-node", "duemq-proxy", "duemq-kafka", "duemq-zookeeper", "duemq-http", "duemq-node-headless",
    "duemq-kafka-ui", "duemq-metrics", "duemq-data", "duemq-3", "duemq-node--link",
)  # fmt: skip
SENDERS = 8
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) ")

_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && cd / && exec "$@"'


def services() -> dict[str, str]:
    """What Kubernetes sets for each of them."""
    found: dict[str, str] = {}
    for name in SERVICES:
        own, url = name.upper().replace("-", "_"), "tcp://10.96.0.7:8787"
        found |= {
            f"{own}_SERVICE_HOST": "10.96.0.7", f"{own}_SERVICE_PORT": "8787", f"{own}_SERVICE_PORT_HTTP": "8787",
            f"{own}_PORT": url, f"{own}_PORT_8787_TCP": url, f"{own}_PORT_8787_TCP_PROTO": "tcp",
            f"{own}_PORT_8787_TCP_PORT": "8787", f"{own}_PORT_8787_TCP_ADDR": "10.96.0.7",
        }  # fmt: skip
    return found


class Pod(Server):
    """`process` is what made the namespaces, `first` is process 1 in them."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, *options)
        data.mkdir()
        data.chmod(0o770)  # as a volume of Kubernetes with an fsGroup
        # That right to read lets it find an interpreter that only root may look for; it writes nothing by it.
        read = "-all,+dac_read_search"
        self.command = [
            "unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child", "sh", "-c", _MOUNT, data,
            "setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "--no-new-privs", f"--inh-caps={read}",
            f"--ambient-caps={read}", "env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME", DUEMQ,
        ]  # fmt: skip
        self.environment = services() | {"DUEMQ_VERSION": "1.2.3"}

    @property
    def first(self) -> int:
        (pid,) = children(self.process.pid)
        return pid

    def stop(self, number: int = signal.SIGTERM, within_s: float = PROCESS_S) -> int:
        os.kill(self.first, number)
        return self.process.wait(within_s)


def message(number: int) -> dict[str, str]:
    return {"topic": "pod", "payload": str(number), "deliver_after": f"{number % 4}s"}


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


@pytest.fixture
def pod() -> Iterator[Pod]:
    need_namespaces()
    with TemporaryDirectory() as folder:  # pytest's own is for root alone
        Path(folder).chmod(0o755)
        with Pod(Path(folder) / "data") as made:
            yield made


@pytest.mark.slow
def test_no_message_is_lost_or_doubled_in_the_life_of_a_pod(pod: Pod) -> None:
    pod.start()
    status = status_of(pod)
    assert f"\nUid:\t{UID}\t{UID}\t{UID}\t{UID}\n" in status and re.search(r"\nNSpid:\t\d+\t1\n", status)
    assert [line for line in pod.log.splitlines() if "WARNING" in line and "environment" in line][1:] == []
    assert "DUEMQ_VERSION is not a setting" in pod.log
    leave_orphan(pod)

    outcomes = stop_under_load(pod)
    pod.start()
    accepted = {number for number, status in outcomes.items() if status == 201}
    delivered: Counter[int] = Counter()

    def all_are_there() -> bool:
        delivered.clear()
        delivered.update(int(record["payload"]) for record in pod.records("pod"))
        return accepted <= delivered.keys()

    wait_for(all_are_there, "all accepted messages to be delivered")
    assert set(delivered.values()) == {1}
    refused = {number for number, status in outcomes.items() if status is not None and status != 201}
    assert not refused & delivered.keys()
    assert {outcomes[number] for number in refused} <= {503}
    assert pod.stop() == 0, pod.log
    assert "Traceback" not in pod.log
    assert private(pod.data) == {UID}


@pytest.mark.slow
def test_behind_a_balancer_that_keeps_connections_no_request_meets_the_end_of_a_pod(pod: Pod) -> None:
    drain = ("--set", "http.drain_s=10")
    pod.start(*drain)
    with Balancer(pod.url) as balancer:
        balancer.send_more(500)
        for _ in range(2):
            assert pod.stop() == 0, pod.log
            pod.start(*drain)
            balancer.send_more(500)
    assert set(balancer.outcomes.values()) == {201}
    assert balancer.in_drain, "a request came after the signal"
    wait_for(lambda: len(pod.records("pod")) >= len(balancer.outcomes), "all of them to be delivered")
    assert sorted(int(record["payload"]) for record in pod.records("pod")) == sorted(balancer.outcomes)
    assert "Traceback" not in pod.log


class Balancer:
    """Sends to a pod for as long as its `/readyz` is 200, over connections that it keeps for a minute.

    `outcomes`: the status of each message by its number, None where the connection failed. `in_drain`: how many came
    after the signal.
    """

    def __init__(self, url: str) -> None:
        self.outcomes: dict[int, int | None] = {}
        self.in_drain = 0
        self._url, self._numbers = url, count()
        self._ready, self._end = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(SENDERS + 1)

    def __enter__(self) -> Self:
        self._running = [self._threads.submit(work) for work in (self._probe, *[self._send] * SENDERS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._ready.set()
        for each in self._running:
            each.result()
        self._threads.shutdown()

    def send_more(self, messages: int) -> None:
        """Wait until so many more have an outcome."""
        wanted = len(self.outcomes) + messages
        wait_for(lambda: len(self.outcomes) > wanted, f"{messages} more messages to be sent")

    def _client(self) -> httpx.Client:
        kept = httpx.Limits(max_connections=2, max_keepalive_connections=2, keepalive_expiry=60)
        return httpx.Client(base_url=self._url, timeout=300, trust_env=False, limits=kept)

    def _probe(self) -> None:
        with self._client() as client:
            while not self._end.wait(0.2):
                try:
                    is_ready = client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    is_ready = False
                (self._ready.set if is_ready else self._ready.clear)()

    def _send(self) -> None:
        chance = Random()
        with self._client() as client:
            while not self._end.is_set():
                self._ready.wait()
                if self._end.wait(chance.choice((0, 0, 0.3))):  # so that some connections are idle at times
                    return
                number = next(self._numbers)
                try:
                    answer = client.post("/v1/messages", json=message(number))
                except httpx.TransportError:
                    self.outcomes[number] = None
                else:
                    self.outcomes[number] = answer.status_code
                    self.in_drain += answer.headers.get("connection") == "close"


@pytest.mark.slow
def test_a_pod_can_be_stopped_while_it_starts(pod: Pod) -> None:
    pod.spawn()
    wait_for(lambda: catches(pod, signal.SIGTERM), "process 1 to hear SIGTERM")
    assert pod.stop() == 0, pod.log
    assert "Traceback" not in pod.log


def catches(pod: Pod, number: signal.Signals) -> bool:
    """Whether its process 1 has a handler: the kernel keeps other signals from it."""
    found = re.search(r"\nNSpid:\t\d+\t1\n(?s:.*)\nSigCgt:\t([0-9a-f]+)\n", status_of(pod))
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def status_of(pod: Pod) -> str:
    return "".join(Path(f"/proc/{pid}/status").read_text() for pid in children(pod.process.pid))


def leave_orphan(pod: Pod) -> None:
    """As `kubectl exec POD -- sh -c 'something &'` does. It ends with an error: nothing must come of that."""
    (server,) = children(pod.first)
    read, write = os.pipe()
    enter = ["nsenter", "--target", str(pod.first), "--pid", "--mount", "sh", "-c"]
    subprocess.run([*enter, "exec 3<&0; sh -c 'read line; exit 3' <&3 &"], check=True, stdin=read)
    wait_for(lambda: len(children(pod.first)) == 2, "process 1 to inherit the orphan", PROCESS_S)
    os.close(read)
    os.close(write)
    wait_for(lambda: children(pod.first) == [server], "process 1 to wait for the orphan")
    assert pod.is_ready()


def stop_under_load(pod: Pod) -> dict[int, int | None]:
    """What was answered to each message, by its number; None where nobody knows. Each sender keeps its connection."""
    outcomes: dict[int, int | None] = {}
    numbers = count()

    def send() -> None:
        with httpx.Client(base_url=pod.url, timeout=300, trust_env=False) as client:
            while True:
                number = next(numbers)
                try:
                    outcomes[number] = client.post("/v1/messages", json=message(number)).status_code
                except httpx.TransportError:
                    outcomes[number] = None
                    return

    with ThreadPoolExecutor(SENDERS) as senders:
        sending = [senders.submit(send) for _ in range(SENDERS)]
        wait_for(lambda: len(outcomes) > 500, "the load to be on")
        assert pod.stop() == 0, pod.log
    for sender in sending:
        sender.result()
    return outcomes


def private(data: Path) -> set[int]:
    """Who owns what is in a folder. Nothing of it may be read or entered by anybody else."""
    found = [Path(folder) / name for folder, folders, files in os.walk(data) for name in (*folders, *files)]
    assert len(found) > 10
    assert [path for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []
    return {path.lstat().st_uid for path in found}


def test_a_server_keeps_its_files_to_itself_and_outlives_its_terminal(new_server: Callable[..., Server]) -> None:
    server = new_server()
    server.command = ["sh", "-c", 'umask 022 && exec "$@"', "sh", DUEMQ]
    server.start()
    server.send("t", payload="now")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "SIGHUP is ignored" in server.log, "the signal to be heard")
    assert server.is_ready()
    assert health(server) == (0, "ready\n")
    assert all(LINE.match(line) for line in server.log.splitlines())
    assert server.stop() == 0, server.log
    assert health(server)[0] == 1
    assert private(server.data) == {os.geteuid()}
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700


def health(server: Server) -> tuple[int, Any]:
    asked = run("health", "--listen", server.url.removeprefix("http://"))
    return asked.returncode, asked.stdout
