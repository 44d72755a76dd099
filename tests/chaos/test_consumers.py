"""Members of a group are killed all the time: every message is handled or a dead letter, each retry is on time."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from duemq.client.consumer.retry.policy import LEVELS_MS
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.topics.group_topics import dead_letter_topic
from tests.chaos.conftest import SEED
from tests.chaos.consumer_worker import fails, rejected
from tests.e2e.server import Server
from tests.support.consumer.consumer_site import new_topic
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

PARTITIONS, MEMBERS = 8, 3
_SETTLED_S = 300.0
_ACCEPTED_MS = 5_000  # from the beginning of a handler that fails until the log has the message, with members dying


@dataclass
class Seen:
    """What all members have noted: of each message by attempt when handlers began (ms) and when it was due."""

    began: dict[int, dict[int, list[tuple[float, int]]]] = field(default_factory=dict)
    first: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))  # partition: ns, offset
    done: set[int] = field(default_factory=set)


def read(folder: Path) -> Seen:
    seen = Seen()
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            words = line.split()
            if words[0] == "done":
                seen.done.add(int(words[1]))
                continue
            at, partition, offset, attempt, due, number = map(int, words)
            seen.began.setdefault(number, {}).setdefault(attempt, []).append((at / 1e6, due))
            if attempt == 1:
                seen.first[partition].append((at, offset))
    return seen


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A Kafka that lets sessions be short, with a duemq on it."""
    need_servers()
    with ExitStack() as stack:
        extra = {"group.min.session.timeout.ms": "500"}
        kafka = stack.enter_context(KafkaServers(tmp_path / "kafka", extra=extra))
        stack.enter_context(Server(tmp_path / "data", "--kafka", kafka.bootstrap)).start()
        yield kafka.bootstrap


async def fill(bootstrap: str, topic: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        sent = [await producer.send(topic, b"%d" % number, partition=number % PARTITIONS) for number in range(count)]
        await asyncio.gather(*sent)


async def dead_letters(bootstrap: str, group: str) -> list[int]:
    """The numbers of all dead letters of a group."""
    async with AIOKafkaConsumer(
        dead_letter_topic(group), bootstrap_servers=bootstrap, auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:  # fmt: skip
        found: list[int] = []
        while records := [each for some in (await consumer.getmany(timeout_ms=1_000)).values() for each in some]:
            found += [int(each.value) for each in records]
        return found


class Members:
    """Processes of one group; some die."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.seen = folder / "seen"
        self.seen.mkdir()
        self._log = folder / "members.log"
        self._command = [sys.executable, "-P", "-m", "tests.chaos.consumer_worker", *map(str, arguments)]
        self._processes = [self._start() for _ in range(MEMBERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def kill_one(self, rng: random.Random) -> None:
        number = rng.randrange(MEMBERS)
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._start()

    def stop(self) -> list[int]:
        for each in self._processes:
            each.terminate()
        return [each.wait(60) for each in self._processes]


def wait_until_all_ended(members: Members, count: int) -> None:
    """Handled to the end, or rejected."""
    deadline = time.monotonic() + _SETTLED_S
    while True:
        seen = read(members.seen)
        open_ = {n for n in range(count) if n not in seen.done and not (rejected(n) and n in seen.began)}
        if not open_:
            return
        assert time.monotonic() < deadline, f"{len(open_)} messages did not end, such as {sorted(open_)[:20]}"
        time.sleep(1)


@pytest.mark.parametrize(
    ("count", "first_level", "kills", "every_s"),
    [pytest.param(6_000, 1, 2, 2.0, marks=[pytest.mark.smoke, pytest.mark.slow]), (100_000, 3, 12, 4.0)],
)
def test_members_that_are_killed_lose_nothing(
    count: int, first_level: int, kills: int, every_s: float, bootstrap: str, tmp_path: Path
) -> None:
    rng, group = random.Random(SEED), f"group-{secrets.token_hex(4)}"
    topic = asyncio.run(new_topic(bootstrap, PARTITIONS))
    asyncio.run(fill(bootstrap, topic, count))
    members = Members(tmp_path, bootstrap, group, topic, tmp_path / "seen", first_level)
    try:
        for _ in range(kills):
            time.sleep(every_s)  # the load under which it dies
            members.kill_one(rng)
        wait_until_all_ended(members, count)
    finally:
        codes = members.stop()
    assert codes == [0] * MEMBERS, (tmp_path / "members.log").read_text()[-3_000:]

    seen, dead = read(members.seen), asyncio.run(dead_letters(bootstrap, group))
    assert sorted(dead) == [n for n in range(count) if rejected(n)], "each rejected one is a dead letter, once"
    assert seen.done == {n for n in range(count) if not rejected(n)}
    assert all(set(seen.began[n]) == ({1, 2, 3} if fails(n) else {1}) for n in range(count))
    in_order(seen)
    late = at_their_time(seen, count, first_level)
    print(f"{count} messages, {kills} kills, retries late by p50 {late[len(late) // 2]:.0f} ms, max {late[-1]:.0f} ms")


def in_order(seen: Seen) -> None:
    """When a message is handled for the first time, all before it in its partition have been started."""
    for partition, began in seen.first.items():
        highest = -1
        for _, offset in sorted(began):
            assert offset <= highest + 1, f"partition {partition}: {offset} was begun before {highest + 1}"
            highest = max(highest, offset)


def at_their_time(seen: Seen, count: int, first_level: int) -> list[float]:
    """How late retries began (ms), sorted. Each is due exactly its level after a failed attempt was accepted."""
    late: list[float] = []
    for number in filter(fails, range(count)):
        for attempt in (2, 3):
            before, level_ms = seen.began[number][attempt - 1], LEVELS_MS[first_level - 1 + attempt - 2]
            for began, due in seen.began[number][attempt]:
                assert began >= due, f"message {number} came {due - began:.1f} ms early"
                assert any(0 <= due - level_ms - failed + 1 <= _ACCEPTED_MS for failed, _ in before), (
                    f"message {number} was due {due}, {level_ms} ms after none of {before}"
                )
            late.append(min(began for began, _ in seen.began[number][attempt]) - seen.began[number][attempt][0][1])
    return sorted(late)
