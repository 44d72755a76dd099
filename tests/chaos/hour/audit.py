"""The Spark audit, in slices: each before the logs are emptied, and one at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from duemq.pipeline.spark.connector import JARS_VARIABLE
from tests.chaos.pace import SLOW
from tests.e2e.load import now_ms
from tests.e2e.server import DUEMQ, environment
from tests.support.spark.spark_site import SETTINGS, spark_jars

_WITHIN_S = 900.0 * SLOW
_TRIES = 3


class Audits:
    """Slices meet: every message is accounted for in the one in which its command was applied."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap, self._folder = bootstrap, folder
        self._since: int | None = None
        self.slices: list[dict[str, Any]] = []

    async def slice(self) -> None:
        """Audit what has happened since the last one. Nothing may be under way."""
        until = now_ms() + 1
        command = [
            str(DUEMQ), "spark", "audit", "--kafka", self._bootstrap, "--json", "--master", "local[2]",
            "--out", str(self._folder / f"{len(self.slices):03d}"), "--until", str(until),
            *(() if self._since is None else ("--since", str(self._since))),
            *(word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")),
        ]  # fmt: skip
        for tries_left in reversed(range(_TRIES)):
            said, complaints = await self._run(command)
            if said or not tries_left:
                break
        assert said, complaints.decode(errors="replace")[-3_000:]
        self.slices.append(orjson.loads(said))
        self._since = until

    async def _run(self, command: list[str]) -> tuple[bytes, bytes]:
        """Output and complaints. Without output the audit could not be made: a machine that starts Spark has little
        time for Kafka."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment() | {JARS_VARIABLE: str(spark_jars())},
        )  # fmt: skip
        try:
            async with asyncio.timeout(_WITHIN_S):
                said, complaints = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return said if process.returncode in (0, 1) else b"", complaints

    @property
    def accepted(self) -> int:
        return sum(each["accepted"] for each in self.slices)

    @property
    def outcomes(self) -> Counter[str]:
        """Messages by outcome, in all slices."""
        return sum((Counter(each["outcomes"]) for each in self.slices), Counter())

    @property
    def violations(self) -> Counter[str]:
        return sum((Counter(each["violations"]) for each in self.slices), Counter())
