"""Workers of a group: each receives, then acknowledges the messages."""

import asyncio
from dataclasses import dataclass

import orjson

from duemq.bench.base.session import JSON, now_ms, session
from duemq.bench.base.workers import WorkerLink

_WAIT = "2s"  # a worker that waited this long without a message ends


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The ids of all messages received, when the first request was sent and the last ack answered (epoch ms), and how
    many acks came too late."""

    ids: list[str]
    began_ms: float
    ended_ms: float
    late: int


async def receive_all(link: WorkerLink, url: str, topic: str, group: str, workers: int, most: int) -> GroupWork:
    """`most`: messages of one receive."""
    path = f"/v1/topics/{topic}/groups/{group}"
    ids = list[str]()
    began_ms = ended_ms = now_ms()
    late = 0

    async with session(url, workers) as http, asyncio.TaskGroup() as tasks:

        async def work() -> None:
            nonlocal ended_ms, late
            while True:
                async with http.post(f"{path}:receive?max={most}&wait={_WAIT}&visibility=30s") as answer:
                    answer.raise_for_status()
                    messages = orjson.loads(await answer.read())["messages"]
                if not messages:
                    return
                ids.extend(message["id"] for message in messages)
                body = orjson.dumps({"receipts": [message["receipt"] for message in messages]})
                async with http.post(f"{path}:ack", data=body, headers=JSON) as answer:
                    answer.raise_for_status()
                    results = orjson.loads(await answer.read())["results"]
                late += sum("error" in result for result in results)
                ended_ms = now_ms()
                link.progress(len(ids))

        for _ in range(workers):
            tasks.create_task(work(), name="group worker")
    return GroupWork(ids, began_ms, ended_ms, late)
