"""`duemq bench relay`: what it runs, what its sink notes, and how it reads the relay's figures."""

import asyncio
import math
from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.send import SendJob, SendWindow
from duemq.bench.command_far import app
from duemq.bench.plans import bench_steps
from duemq.bench.plans.bench_steps import beside_bad_step, relay_step
from duemq.bench.relay import sink
from duemq.bench.relay.receivers import credentials, place
from duemq.bench.relay.relayed import quantile
from duemq.bench.system.system import free_port


class Unpiped(WorkerLink):
    """A link to nobody."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def progress(self, count: int) -> None: ...


def test_the_steps_fit_their_scenarios() -> None:
    for step in (relay_step("nats", None, 1_000, (1_000, 2_000), 1), beside_bad_step(100, 500, 1)):
        wanted = bench_steps.SCENARIOS[step.name].__code__
        assert set(step.parameters) == set(wanted.co_varnames[1 : wanted.co_argcount + wanted.co_kwonlyargcount])


@pytest.mark.parametrize("options", [("--endpoints", "3"), ("--endpoints", "9", "--to", "nats"), ("--url", "http://x")])
def test_what_does_not_go_together_is_refused(options: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["relay", *options]).exit_code == 2


async def answers(port: int, *requests: bytes, within_s: float = 2.0) -> list[bytes]:
    """The first line of each answer on one connection, as far as they come in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines: list[bytes] = []
    try:
        for request in requests:
            writer.write(request)
        async with asyncio.timeout(within_s):
            while len(lines) < len(requests):
                head = await reader.readuntil(b"\r\n\r\n")
                lines.append(head.split(b"\r\n")[0])
    except TimeoutError:
        pass
    finally:
        writer.close()
        await writer.wait_closed()
    return lines


def request(path: str, body: bytes = b"x", due: int = 0) -> bytes:
    return b"POST %b HTTP/1.1\r\nduemq-due: %d\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(), due, len(body), body,
    )  # fmt: skip


def test_the_sink_counts_what_comes_to_the_hook() -> None:
    async def play() -> None:
        link, port = Unpiped(), free_port()
        listening = asyncio.create_task(sink.listen(link, port))
        await asyncio.sleep(0.05)
        counted = [request(sink.HOOK, b'{"seq":"%012d"}%b' % (seq, b"x" * 200_000), seq * 10) for seq in (4, 5)]
        done, failed = b"HTTP/1.1 204 No Content", b"HTTP/1.1 500 Internal Server Error"
        others = [request(sink.PLAIN), request(sink.ERROR)]
        assert await answers(port, *counted, *others) == [done, done, done, failed]
        assert await answers(port, request(sink.SLOW), within_s=0.1) == []
        link.stopped.set()
        received = await listening
        assert list(zip(received.seq.tolist(), received.due.tolist(), strict=True)) == [(4, 40), (5, 50)]

    asyncio.run(play())


def test_messages_go_to_topics_in_turn() -> None:
    job = SendJob("http://x", "t", 4, SendWindow(0, 1))
    assert [job.topic_of(seq) for seq in range(3)] == ["t", "t", "t"]
    assert [replace(job, topics=2).topic_of(seq) for seq in range(3)] == ["t.0", "t.1", "t.0"]


def test_a_quantile_is_of_what_came_between() -> None:
    before = Counter({10.0: 5, 20.0: 5, math.inf: 5})
    after = Counter({10.0: 5, 20.0: 104, math.inf: 105})
    assert quantile(before, after, 0.99) == 20 and quantile(before, after, 1) == math.inf
    assert math.isnan(quantile(after, after, 0.5))


def test_a_url_is_shown_without_its_secrets() -> None:
    url = "amqp://guest:p%40ss@mq.example:5672/"
    assert place(url) == "amqp://mq.example:5672/"
    assert credentials(url) == {"username": "guest", "password": "p@ss"}
