"""A whole cluster under load, a fault put into it, and the full reconciliation afterwards.

`World.run(fault)` is one scenario: separate topics, senders over all proxies, a pulse of probes, the fault, quiet, and
then the proof that every message had the one outcome that was answered and that all replicas are equal.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from duemq.cli.exit_codes import Exit
from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.servers.ports import is_open
from tests.chaos.cluster import ChaosCluster
from tests.chaos.figures import Figures
from tests.chaos.pace import SLOW
from tests.chaos.probe import Probe, reconcile_probes
from tests.chaos.replicas import same_replicas
from tests.chaos.shape import Shape
from tests.chaos.topics import committed, end_offsets, make_topic, purge_before
from tests.e2e.load import Load, now_ms
from tests.e2e.outcomes import ABSENT, Kind, Message, State
from tests.e2e.reconcile import final_states, nothing_pending, reconcile
from tests.e2e.server import run

DEAD_LETTERS, BUFFER, LEDGER = "duemq.dlq", "duemq.buffer", "duemq.ledger"
RECOVERED_S = 300.0 * SLOW
_DUE_S = 300.0 * SLOW  # the latest due time of a scenario, from when it has ended
_SENDERS = 6
_PAUSE_S = 0.02 * SLOW  # between two requests of a sender: the machine has other things to do, too
_ASKED = 2_000  # messages whose final state is asked for
_SETTLE_MS = 1_000
_LEAST = 500  # messages of a scenario, some of which are cancelled
_FAR_MS = 20_000  # what is due later may be pending while the cluster rests
_LIMIT_S = 1800.0


class World:
    """One scenario's topics and load on a cluster that runs."""

    def __init__(self, cluster: ChaosCluster, shape: Shape, figures: Figures, name: str, seed: int) -> None:
        self.cluster, self.shape, self.figures = cluster, shape, figures
        self.chance = random.Random(seed)
        self.bootstrap = cluster.kafka.bootstrap
        self.folder = cluster.folder
        self.load = Load([proxy.url for proxy in cluster.proxies], seed, f"load.{name}", _PAUSE_S)
        self.probe = Probe(self.bootstrap, f"probe.{name}", shape.shards)
        self.dead_letters = 0  # how many the scenario expects
        self.before_purging: Callable[[], Awaitable[None]] | None = None
        self._pauses: list[tuple[str, int, int, int]] = []
        self._log_starts = {process.log: _size(process.log) for process in self._processes()}

    def _processes(self) -> list[DuemqProcess]:
        return [*self.cluster.nodes, *self.cluster.proxies]

    def run(self, fault: Callable[[World], Awaitable[None]], limit_s: float = _LIMIT_S) -> None:
        asyncio.run(self._run(fault, limit_s))

    async def _run(self, fault: Callable[[World], Awaitable[None]], limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            for topic in (self.load.topic, self.probe.topic):
                await make_topic(self.bootstrap, topic, 3, self.shape.brokers)
            dead_before = len(await committed(self.bootstrap, DEAD_LETTERS))
            async with asyncio.TaskGroup() as group:
                stop = asyncio.Event()
                follower = group.create_task(self.probe.follow(), name="follower")
                sending = group.create_task(self.probe.send(stop), name="probe")
                loading = group.create_task(self.load.run(_SENDERS), name="load")
                self.load.up.set()
                await self.deliver_again(now_ms() + _SETTLE_MS)
                await fault(self)
                await self.deliver_again(now_ms() + _SETTLE_MS)
                await self.accept_again(max(_LEAST - self._accepted(), 0))
                self.load.stop()
                stop.set()
                await asyncio.gather(sending, loading)
                await self._quiet()
                follower.cancel()
            await self._reconcile(dead_before)

    async def _quiet(self) -> None:
        """Until nothing is pending and every node has followed."""
        for topic in (self.load.topic, self.probe.topic):
            await nothing_pending(self.cluster.proxies[0].url, topic, _DUE_S)
        await self.until(self.all_ready, "every node to be ready and level with the ledger")

    # --- rest -----------------------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Send nothing until `go_on`. Comes back when all that is due is delivered, and every node that runs is level.

        Messages of `schedule` may still be pending.
        """
        self.load.up.clear()
        await self.probe.rest()

        async def still() -> bool:
            due_ms = now_ms()
            pages = [await self.pending(topic) for topic in (self.load.topic, self.probe.topic)]
            soon = [message for page in pages for message in page if message["deliver_at_ms"] < due_ms + _FAR_MS]
            return self.load.under_way == 0 and not soon and await self.all_level()

        await self.until(still, "nothing to be due and every node to be level")

    def go_on(self) -> None:
        self.load.up.set()
        self.probe.go_on()

    async def purge_logs(self, last_entries: int) -> None:
        """Delete all of the logs of idle shards except this many entries of each ledger."""
        if self.before_purging is not None:
            await self.before_purging()
        commands = await end_offsets(self.bootstrap, (BUFFER,))
        entries = await end_offsets(self.bootstrap, (LEDGER,))
        kept = last_entries * 2  # offsets: an entry, and the mark of its transaction
        await purge_before(self.bootstrap, commands | {at: max(end - kept, 0) for at, end in entries.items()})

    async def schedule(self, count: int, due: int) -> list[str]:
        """Messages of the load that are due at this time; their ids."""
        names = [f"{self.load.topic}.scheduled.{due}.{number}" for number in range(count)]
        messages = [Message(name, {ABSENT, State(Kind.HELD, due)}) for name in names]
        self.load.messages |= dict(zip(names, messages, strict=True))
        ids = await self.send([{"topic": self.load.topic, "payload": name, "deliver_at": due} for name in names])
        for message, id_ in zip(messages, ids, strict=True):
            message.accepted({"id": id_, "deliver_at_ms": due})
        return ids

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel messages of `schedule`. On a slow machine some may be due before; all of them may not."""
        known = {message.id: message for message in self.load.messages.values()}
        async with aiohttp.ClientSession(self.cluster.proxies[0].url) as session:
            answers = [await self._cancel(session, id_) for id_ in ids]
        for id_, code in zip(ids, answers, strict=True):
            known[id_].changed("cancel", code)
        assert "ok" in answers, "scheduled too early: nothing was left to be cancelled"

    async def _cancel(self, session: aiohttp.ClientSession, id_: str) -> str:
        """Retried while the answer is unknown."""
        code = ""

        async def is_answered() -> bool:
            nonlocal code
            async with session.delete(f"/v1/messages/{id_}") as answer:
                content = await answer.json()
            code = "ok" if answer.status == 200 else content["code"] if answer.status == 409 else ""
            assert code or answer.status in (202, 503, 504), content
            return bool(code)

        await self.until(is_answered, f"an answer to the cancel of {id_}")
        return code

    async def _reconcile(self, dead_before: int) -> None:
        records = await committed(self.bootstrap, self.load.topic)
        probes = await committed(self.bootstrap, self.probe.topic)
        dead = await committed(self.bootstrap, DEAD_LETTERS)
        reconcile(self.load.messages.values(), records)
        reconcile_probes(self.probe, probes)
        assert len(dead) - dead_before == self.dead_letters, dead[dead_before:][:3]
        assert len(records) > 200, self.load.done
        asked = list(self.load.messages.values())
        await final_states(
            [proxy.url for proxy in self.cluster.proxies], self.chance.sample(asked, min(len(asked), _ASKED))
        )
        for what, shard, fault, until in self._pauses:
            pause = self.probe.pause(shard, fault, until)
            self.figures.add(what, pause.after_fault if what.startswith("fail-over") else pause.gap)
        await self.each(self.cluster.nodes, lambda node: node.process.stop())
        same_replicas([node.data for node in self.cluster.nodes], self.shape.shards)
        self._no_tracebacks()

    def _no_tracebacks(self) -> None:
        for process in self._processes():
            said = process.log.read_bytes()[self._log_starts[process.log] :].decode(errors="replace")
            at = said.find("Traceback")
            assert at < 0, f"{process.name} failed:\n{said[max(at - 500, 0) : at + 3_000]}"

    # --- looking --------------------------------------------------------------------------------------------------

    async def cluster_json(self) -> dict[str, Any]:
        """What the first proxy that answers says of the cluster."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5 * SLOW)) as session:
            for proxy in self.cluster.proxies:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{proxy.url}/v1/cluster") as answer:
                        if answer.status == 200:
                            found: dict[str, Any] = await answer.json()
                            return found
        return {"nodes": [], "shards": []}

    async def masters(self) -> dict[int, str]:
        """The master of each shard, once all have one that runs."""
        found: dict[int, str] = {}

        async def complete() -> bool:
            shown = await self.cluster_json()
            live = {node.name for node in self.cluster.nodes if node.process.running}
            found.clear()
            found.update({shard["shard"]: shard["master"] for shard in shown["shards"] if shard["master"] in live})
            return len(found) == self.shape.shards

        await self.until(complete, "every shard to have a master")
        return found

    async def some_master(self) -> tuple[DuemqProcess, list[int]]:
        """The master of a shard taken by chance, and all the shards it is master of."""
        masters = await self.masters()
        name = masters[self.chance.randrange(self.shape.shards)]
        (node,) = (node for node in self.cluster.nodes if node.name == name)
        return node, [shard for shard, master in masters.items() if master == name]

    async def all_ready(self) -> bool:
        """Whether all nodes are there, ready, and level with the ledger."""
        return len((await self.cluster_json())["nodes"]) == self.shape.nodes and await self.all_level()

    async def all_level(self) -> bool:
        """Whether the nodes that are there are ready and level with the ledger."""
        nodes = (await self.cluster_json())["nodes"]
        return bool(nodes) and all(node["state"] == "ready" and not any(node["lag"].values()) for node in nodes)

    async def pending(self, topic: str) -> list[dict[str, Any]]:
        """The messages of a topic that are pending, up to a thousand of them."""
        async with aiohttp.ClientSession(self.cluster.proxies[0].url) as session:
            async with session.get(f"/v1/messages?topic={topic}&limit=1000") as answer:
                page = await answer.json()
        return page.get("messages") or []

    # --- waiting and acting ---------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within_s: float = RECOVERED_S) -> None:
        try:
            async with asyncio.timeout(within_s) as limit:
                while True:
                    if await condition():
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            if not limit.expired():
                raise
            raise AssertionError(f"waited {within_s:.0f} s for {what}: {await self.cluster_json()}") from None

    async def deliver_again(self, due_after_ms: int, shards: Iterable[int] | None = None) -> None:
        """Wait until shards (None = all) have delivered a probe that was due after this time."""
        wanted = range(self.shape.shards) if shards is None else shards
        try:
            await self.probe.delivers(wanted, due_after_ms, RECOVERED_S)
        except TimeoutError:
            last = {shard: seen[-1].due for shard, seen in self.probe.seen.items() if seen}
            shown, ends = await self.cluster_json(), await end_offsets(self.bootstrap, [self.probe.topic])
            raise AssertionError(
                f"nothing due after {due_after_ms} was delivered of {list(wanted)}: {last}, {shown}, ends {ends}"
            ) from None

    async def accept_again(self, count: int) -> None:
        """Wait until this many more messages of the load are accepted."""

        async def enough() -> bool:
            return self._accepted() >= wanted

        wanted = self._accepted() + count
        await self.until(enough, f"{count} more messages to be accepted")

    def _accepted(self) -> int:
        return sum(message.id is not None for message in self.load.messages.values())

    async def start(self, process: DuemqProcess) -> None:
        """Start a node or proxy, and wait until the whole cluster is level again."""
        await asyncio.to_thread(process.start)
        await self.until(self.all_ready, f"{process.name} to be ready again")

    async def until_answers(self, process: DuemqProcess) -> None:
        """A node or proxy that was spawned listens, be it ready or not."""

        async def listens() -> bool:
            return is_open(process.port)

        await self.until(listens, f"{process.name} to listen")

    async def until_dead(self, process: DuemqProcess) -> None:
        async def is_dead() -> bool:
            return not process.process.running

        await self.until(is_dead, f"{process.name} to die")

    async def send(self, messages: list[dict[str, Any]]) -> list[str]:
        """The ids of accepted messages, each with a name: one that is repeated after an unknown outcome stays one."""
        async with aiohttp.ClientSession(self.cluster.proxies[0].url) as session:
            return [await self._put(session, message) for message in messages]

    async def _put(self, session: aiohttp.ClientSession, message: dict[str, Any]) -> str:
        name, receipt = secrets.token_hex(8), {}

        async def accepted() -> bool:
            async with session.put(f"/v1/messages/{name}", json=message) as answer:
                receipt.update(await answer.json())
            assert answer.status in (200, 201, 503, 504), receipt
            return answer.status < 500

        await self.until(accepted, f"a message to {message['topic']} to be accepted")
        return str(receipt["id"])

    async def duemq(self, *arguments: str) -> str:
        """The output of an idempotent `duemq` command. Retried while the servers cannot do it."""
        said = ""

        async def is_done() -> bool:
            nonlocal said
            done = await asyncio.to_thread(run, *arguments, url=self.cluster.proxies[0].url)
            said = done.stdout
            assert done.returncode in (Exit.DONE, Exit.UNAVAILABLE), done.stdout + done.stderr
            return done.returncode == Exit.DONE

        await self.until(is_done, f"duemq {' '.join(arguments)}")
        return said

    async def each(self, processes: Iterable[Any], act: Callable[[Any], object]) -> None:
        """Do something that blocks to all of them at once."""
        async with asyncio.TaskGroup() as group:
            for process in processes:
                group.create_task(asyncio.to_thread(act, process))

    def note(self, what: str, shards: Iterable[int], fault_ms: int) -> None:
        """Measure the pause of these shards from a fault at this time until now, when all records are known."""
        self._pauses += [(what, shard, fault_ms, now_ms()) for shard in shards]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
