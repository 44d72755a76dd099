"""The honest client: sends on a fixed schedule, reads the deliveries, and counts every message."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import BenchWorker
from duemq.bench.clients.payloads import SEQUENCE
from duemq.bench.clients.reader import ReceivedRecords, read
from duemq.bench.clients.send import SendJob, SendWindow, SentMessages, send_steadily
from duemq.bench.system.system import get

TOPIC = "honest"
_AHEAD = SendWindow(1_000, 2_000)
_CONNECTIONS = 8
_LINGER_S = 2.0  # after the last one that is expected, for those that come twice
_PATIENCE_S = 15.0  # without any progress: the rest is lost
_LOOK_S, _SCRAPE_EVERY = 1.0, 15


@dataclass(frozen=True, slots=True)
class Kept:
    """What the topic holds in the end: sequence number, due time and the record's time (epoch ms) of each record."""

    seq: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]
    at: npt.NDArray[np.int64]


class HonestClient:
    """`rate` messages/s for `seconds`, each due one to two seconds ahead, in batches over eight connections.

    It never sends anything again: whatever is not accepted at once counts as not accepted.
    """

    def __init__(self, url: str, rate: float, seconds: float, seed: int) -> None:
        self.count = int(rate * seconds)
        self.reader = BenchWorker(read, url, TOPIC)
        job = SendJob(url, TOPIC, self.count, _AHEAD, seed=seed)
        self.sender = BenchWorker(send_steadily, job, rate, connections=_CONNECTIONS)
        self._read, self._moved_at = -1, time.monotonic()

    def hear(self) -> None:
        """Take in what both say: a full pipe would hold them up. Raises WorkerError where the reader has died."""
        self.sender.poll()
        if self.reader.poll():
            self.reader.result()

    def has_begun(self) -> bool:
        return self.sender.count > 0

    def is_done(self) -> bool:
        """Whether all messages are sent, and all have arrived or no more do. Raises WorkerError if a worker died."""
        if not self.sender.poll():
            return False
        if self.reader.count != self._read:
            self._read, self._moved_at = self.reader.count, time.monotonic()
        quiet_s = time.monotonic() - self._moved_at
        return quiet_s > (_LINGER_S if self._read >= self.sender.result().accepted else _PATIENCE_S)

    def results(self) -> tuple[SentMessages, ReceivedRecords]:
        self.reader.stop()
        return self.sender.result(), self.reader.result()

    def end(self) -> None:
        self.sender.end()
        self.reader.end()


def kept(url: str) -> Kept:
    """All of the honest client's topic, read once more from its start."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    rows: list[tuple[int, int, int]] = []
    after = ""
    while True:
        connection.request("GET", f"/v1/topics/{TOPIC}/records?max=10000{after}")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the topic cannot be read: {answer.status} {body[:200]!r}")
        page = orjson.loads(body)
        if not page["records"]:
            break
        rows += [
            (int(each["payload"][SEQUENCE]), int(each["headers"]["duemq-due"]), each["timestamp_ms"])
            for each in page["records"]
        ]
        after = f"&after={page['cursor']}"
    connection.close()
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return Kept(columns[:, 0], columns[:, 1], columns[:, 2])


class Newcomer:
    """A visitor once a second, each time by a new connection, and a Prometheus every 15 s.

    `visits`: when each started (epoch ms), its duration (ms), and whether it was answered 200 within 5 s.
    """

    def __init__(self, url: str) -> None:
        self.visits: list[tuple[float, float, bool]] = []
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run, name="newcomer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            path = "/healthz" if len(self.visits) % _SCRAPE_EVERY else "/metrics"
            began = now_ms()
            status, _ = get(self._url, path)
            self.visits.append((began, now_ms() - began, status == 200))
