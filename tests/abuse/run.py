"""One run: a server, an honest client all the time, and after a while without them the abusers."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import BenchWorker
from tests.abuse.abusers import KINDS, Counts, abuse
from tests.abuse.account import Account
from tests.abuse.base import Sizes
from tests.abuse.honest import TOPIC, HonestClient, Newcomer, kept
from tests.abuse.server import AbusedServer

_LOOK_S = 0.1
_WEIGH_EVERY_S, _SAY_EVERY_S = 1.0, 10.0
_BEGIN_S, _END_S = 120.0, 300.0  # when to give up waiting for the abuse to begin, and for the last deliveries


@dataclass(frozen=True, slots=True)
class Plan:
    """`minutes` with abuse, `quiet_s` without before; `files`: descriptors of the server; `kinds`: in their order."""

    minutes: float = 10.0
    quiet_s: float = 120.0
    rate: float = 1_000.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    sizes: Sizes = field(default_factory=Sizes)
    files: int = 1_024


class ServerDied(RuntimeError):
    """The text is its last words."""


def run(plan: Plan, folder: Path, say: Callable[[str], None] = print) -> Account:
    """All of it, in an empty folder; what went wrong is in the account. `say` gets a line every ten seconds."""
    account = Account(plan.minutes, plan.rate, plan.seed, plan.sizes, list(plan.kinds))
    try:
        with AbusedServer(folder, plan.files) as server:
            _Run(plan, account, server, say).play()
    except Exception as error:
        account.failure = f"{type(error).__name__}: {error}\n\n{traceback.format_exc(limit=-20)}"
    return account


class _Run:
    def __init__(self, plan: Plan, account: Account, server: AbusedServer, say: Callable[[str], None]) -> None:
        self._plan, self._account, self._server, self._say = plan, account, server, say
        self._client = HonestClient(server.url, plan.rate, plan.quiet_s + plan.minutes * 60, plan.seed)
        self._abusers: BenchWorker[Counts] | None = None
        self._began = self._weighed_at = self._said_at = time.monotonic()

    def play(self) -> None:
        plan, account, server, client = self._plan, self._account, self._server, self._client
        try:
            with Newcomer(server.url) as newcomer:
                account.visits = newcomer.visits
                self._until(client.has_begun, _BEGIN_S, "the honest client did not begin")
                begun = time.monotonic()
                self._until(lambda: time.monotonic() - begun > plan.quiet_s, plan.quiet_s + _END_S, "")
                self._abusers = BenchWorker(abuse, server.url, TOPIC, plan.sizes, plan.kinds, plan.seed)
                self._until(lambda: self._abused, _BEGIN_S, "the abuse did not begin")
                account.abused_from = now_ms()
                self._until(client.is_done, plan.minutes * 60 + _END_S, "the honest client does not come to its end")
                account.abused_to = now_ms()
                self._abusers.stop()
                account.counts = self._abusers.result()
            account.sent, account.received = client.results()
            account.kept = kept(server.url)
            account.exit_code = server.stop()
        finally:
            client.end()
            if self._abusers is not None:
                self._abusers.end()

    @property
    def _abused(self) -> bool:
        return self._abusers is not None and self._abusers.count > 0

    def _until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait and weigh. Raises ServerDied, TimeoutError, and WorkerError where a process of ours has failed."""
        deadline = time.monotonic() + within_s
        while not condition():
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(what)
            if not self._server.lives:
                raise ServerDied(f"exit code {self._server.process.returncode}\n{self._server.last_words()}")
            self._client.hear()
            if self._abusers is not None and self._abusers.poll():
                self._account.counts = self._abusers.result()
                raise RuntimeError("the abusers have ended too early")
            if now >= self._weighed_at:
                self._weighed_at = now + _WEIGH_EVERY_S
                self._weigh()
            if now >= self._said_at:
                self._said_at = now + _SAY_EVERY_S
                self._tell(now)
            time.sleep(_LOOK_S)

    def _weigh(self) -> None:
        usage, account = self._server.usage(), self._account
        account.rss.append((now_ms(), usage.rss_bytes))
        account.peak_rss_bytes = max(account.peak_rss_bytes, usage.peak_rss_bytes)

    def _tell(self, now: float) -> None:
        rss = self._account.rss[-1][1] / (1 << 20)
        tried = f", {self._abusers.count:,} connections and topics of abusers" if self._abusers is not None else ""
        client = self._client
        self._say(
            f"{now - self._began:5.0f} s  {client.sender.count:,} sent, {client.reader.count:,} read, "
            f"{rss:,.0f} MiB{tried}"
        )
