"""A client that was used before a fork (gunicorn --preload, Celery's prefork, multiprocessing)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from duemq.client import AsyncClient, Client

CHILDREN, CALLS = 4, 40


def _in_child(work: Callable[[], None]) -> int:
    """The pid of a process that does this and exits, with 0 if it raised nothing."""
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _all_are_well(pids: list[int]) -> bool:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_each_process_gets_its_own_answers(server: str) -> None:
    with Client(server) as client:
        client.send("forks", "before", deliver_after="1h")  # a connection that the children inherit

        def work(child: int) -> None:
            for n in range(CALLS):
                name = f"fork-{os.getpid()}-{n}"
                sent = client.send("forks", "x", key=f"{child}", name=name, deliver_after="1h")
                assert client.get(name).id == sent.id and client.get(sent.id).state.key == f"{child}"

        assert _all_are_well([_in_child(lambda child=child: work(child)) for child in range(CHILDREN)])  # type: ignore[misc]
        assert client.send("forks", "after", deliver_after="1h", key="parent").status == "scheduled"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_each_process_gets_its_own_answers_with_asyncio(server: str) -> None:
    client = AsyncClient(server)

    async def send(name: str, key: str) -> None:
        sent = await client.send("forks", "x", key=key, name=name, deliver_after="1h")
        assert (await client.get(name)).id == sent.id

    async def work(child: int) -> None:
        for n in range(CALLS):
            await send(f"afork-{os.getpid()}-{n}", f"{child}")

    with asyncio.Runner() as runner:
        runner.run(send(f"afork-{os.getpid()}", "parent"))
        children = [_in_child(lambda child=child: asyncio.run(work(child))) for child in range(CHILDREN)]  # type: ignore[misc]
        assert _all_are_well(children)
        runner.run(client.aclose())
