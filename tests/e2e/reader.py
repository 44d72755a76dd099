"""A consumer over HTTP that keeps its place in the server and reads on whatever happens to that one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import aiohttp

from tests.e2e.load import Load

_NAME = "reader"


class Reader:
    """Reads the topic of a load. `records`: what it read, in order."""

    def __init__(self, load: Load, url: str) -> None:
        self.records: list[Any] = []
        self._load, self._url = load, url

    async def run(self) -> None:
        """Until it is cancelled."""
        topic, start = f"/v1/topics/{self._load.topic}", ""
        async with aiohttp.ClientSession(self._url, timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                await self._load.up.wait()
                try:
                    async with session.get(f"{topic}/records?wait=500ms{start}") as answer:
                        if answer.status != 200:
                            continue
                        page = await answer.json()
                except (aiohttp.ClientError, TimeoutError, OSError):
                    await asyncio.sleep(0.01)
                    continue
                self.records += page["records"]
                start = f"&after={page['cursor']}"
                try:
                    async with session.put(f"{topic}/consumers/{_NAME}", json={"cursor": page["cursor"]}) as answer:
                        if answer.status < 300:
                            start = f"&consumer={_NAME}"  # from now on the server has to know it
                except (aiohttp.ClientError, TimeoutError, OSError):
                    continue

    def check(self, records: list[Any]) -> None:
        """What it read is in the topic in the end, at the same place, and it missed nothing before that."""
        seen: dict[int, list[Any]] = defaultdict(list)
        there: dict[int, list[Any]] = defaultdict(list)
        for source, partitions in ((self.records, seen), (records, there)):
            for record in source:
                partitions[record["partition"]].append(record)
        assert self.records
        for partition, part in seen.items():
            assert part == there[partition][: len(part)]
