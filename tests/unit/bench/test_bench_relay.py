"""`duemq bench relay`: what it runs, what its sink notes, and how it reads the relay's figures."""

import asyncio
import math
from collections import Counter

import httpx
import pytest
from typer.testing import CliRunner

from duemq.bench.command_far import app
from duemq.bench.harness.workers import WorkerLink
from duemq.bench.plans import plan
from duemq.bench.plans.relay import beside_bad_step, relay_step
from duemq.bench.relay import sink
from duemq.bench.relay.relayed import quantile
from duemq.bench.relay.systems import credentials, place
from duemq.bench.system.system import free_port


class Unpiped(WorkerLink):
    """A link to nobody."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def progress(self, count: int) -> None: ...


def test_the_steps_fit_their_scenarios() -> None:
    for step in (relay_step("nats", None, 1_000, (1_000, 2_000), 1), beside_bad_step(100, 500, 1)):
        wanted = plan.SCENARIOS[step.name].__code__
        assert set(step.parameters) == set(wanted.co_varnames[1 : wanted.co_argcount + wanted.co_kwonlyargcount])


@pytest.mark.parametrize("options", [("--endpoints", "3"), ("--endpoints", "9", "--to", "nats"), ("--url", "http://x")])
def test_what_does_not_go_together_is_refused(options: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["relay", *options]).exit_code == 2


def test_the_sink_counts_what_comes_to_the_hook() -> None:
    async def play() -> None:
        link, port = Unpiped(), free_port()
        listening = asyncio.create_task(sink.listen(link, port))
        await asyncio.sleep(0.05)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=1) as http:
            posts = [
                http.post(sink.HOOK, content=f'{{"seq":"{seq:012d}"}}{"x" * 70_000}', headers={"duemq-due": str(due)})
                for seq, due in ((4, 40), (5, 50))
            ]
            assert [answer.status_code for answer in await asyncio.gather(*posts)] == [204, 204]
            assert (await http.post(sink.PLAIN, content="x")).status_code == 204
            assert (await http.post(sink.ERROR, content="x")).status_code == 500
            with pytest.raises(httpx.ReadTimeout):
                await http.post(sink.SLOW, content="x")
        link.stopped.set()
        received = await listening
        assert sorted(zip(received.seq.tolist(), received.due.tolist(), strict=True)) == [(4, 40), (5, 50)]

    asyncio.run(play())


def test_a_quantile_is_of_what_came_between() -> None:
    before = Counter({10.0: 5, 20.0: 5, math.inf: 5})
    after = Counter({10.0: 5, 20.0: 104, math.inf: 105})
    assert quantile(before, after, 0.99) == 20 and quantile(before, after, 1) == math.inf
    assert math.isnan(quantile(after, after, 0.5))


def test_a_url_is_shown_without_its_secrets() -> None:
    url = "amqp://guest:p%40ss@mq.example:5672/"
    assert place(url) == "amqp://mq.example:5672/"
    assert credentials(url) == {"username": "guest", "password": "p@ss"}
