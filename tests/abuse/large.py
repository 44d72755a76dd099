"""Requests that are much too large, or large and worthless."""

from __future__ import annotations

from threading import Event

from tests.abuse.base import Abuser, first_bytes

_CHUNK = b"a" * (64 << 10)
_PAUSE_S = 0.5
_BEFORE, _ITEM, _AFTER = b'{"messages":[', b"[],", b"[]]}"


class HugeHeads(Abuser):
    """One header of 100 MiB."""

    side_by_side = 2

    def run(self, stop: Event) -> None:
        while not stop.is_set():
            self.counts["tried"] += 1
            try:
                with self.connect() as sock:
                    sock.sendall(self.head("GET", "/healthz")[:-2] + b"X-Huge: ")
                    for _ in range(self.sizes.head_bytes // len(_CHUNK)):
                        if stop.is_set():
                            return
                        sock.sendall(_CHUNK)
                        self.counts["bytes"] += len(_CHUNK)
                    self.count_answer(first_bytes(sock))
            except OSError:
                self.counts["cut off"] += 1
            stop.wait(_PAUSE_S)


class EmptyBatches(Abuser):
    """As many empty lists as a batch can hold bytes: 11 million in 32 MiB."""

    side_by_side = 2

    def run(self, stop: Event) -> None:
        items = (self.sizes.batch_bytes - len(_BEFORE) - len(_AFTER)) // len(_ITEM)
        body = _BEFORE + _ITEM * items + _AFTER
        head = self.head(
            "POST", "/v1/messages:batch", "Content-Type: application/json", f"Content-Length: {len(body)}",
            "Connection: close",
        )  # fmt: skip
        while not stop.is_set():
            self.counts["tried"] += 1
            try:
                with self.connect() as sock:
                    sock.sendall(head)
                    sock.sendall(body)
                    self.count_answer(first_bytes(sock))
            except OSError:
                self.counts["cut off"] += 1
            stop.wait(_PAUSE_S)
