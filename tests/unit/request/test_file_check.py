"""Files are read one at a time, those that are there, and for those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from duemq.model.errors import OutcomeUnknown, Rejected, StoreFailed, Unavailable
from duemq.proxy.request.file_checker import FileChecker
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.jobs import ImportJob
from tests.support.http.http_site import FakeGateway, app_over

FOUND = {"sha256": "0" * 64, "size": 1, "window": 0, "rows": 1, "first_due": 0, "last_due": 0}


class Reading:
    """Processes that read until `go` is set."""

    def __init__(self) -> None:
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.running = self.most = self.ended = 0
        self.error: Exception | None = None

    async def lines(self, job: ImportJob) -> AsyncGenerator[bytes, None]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        try:
            await self.go.wait()
            if self.error:
                raise self.error
            yield orjson.dumps({"done": 1})
            yield orjson.dumps(FOUND)
        finally:
            self.running -= 1
            self.ended += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a file and a folder in it."""
    (tmp_path / "a.parquet").write_bytes(b"a")
    (tmp_path / "folder").mkdir()
    return tmp_path.resolve()


def test_one_file_is_read_at_a_time_and_a_few_wait(folder: Path) -> None:
    async def scenario() -> None:
        reading, policy, path = Reading(), ImportPolicy((folder,)), str(folder / "a.parquet")
        inspector = FileChecker(2, reading.lines)
        tasks = [asyncio.create_task(inspector.inspect(path, False, policy)) for _ in range(4)]
        (refused,), waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Unavailable, match="are being read"):
            refused.result()
        reading.go.set()
        assert [import_command.path for import_command in await asyncio.gather(*waiting)] == [path] * 3
        assert (reading.most, reading.ended) == (1, 3)
        reading.error = StoreFailed("the process ended with exit code -9")
        with pytest.raises(Unavailable, match="exit code -9") as unread:
            await inspector.inspect(path, False, policy)
        assert not isinstance(unread.value, OutcomeUnknown), "nothing was handed over"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["missing.parquet", "folder", "x" * 300])
def test_what_is_not_there_starts_no_process(folder: Path, name: str) -> None:
    async def scenario() -> None:
        reading, policy = Reading(), ImportPolicy((folder,))
        with pytest.raises(Rejected) as refused:
            await FileChecker(2, reading.lines).inspect(str(folder / name), False, policy)
        assert (refused.value.code, refused.value.field, reading.most) == ("bad_delay_file", "path", 0)

    asyncio.run(scenario())


def test_the_reading_ends_when_its_client_goes(folder: Path) -> None:
    async def scenario() -> None:
        reading, policy = Reading(), ImportPolicy((folder,))
        app: Any = app_over(FakeGateway())
        service = app.service
        object.__setattr__(service, "importing", policy)
        object.__setattr__(service, "inspector", FileChecker(2, reading.lines))
        gone = asyncio.Event()
        body = [orjson.dumps({"path": str(folder / "a.parquet")})]

        async def receive() -> Any:
            if body:
                return {"type": "http.request", "body": body.pop()}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there to be answered")

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/imports", "headers": headers, "query_string": b""}
        asking = asyncio.create_task(app(scope, receive, send))
        await reading.begun.wait()
        gone.set()
        await asking
        assert (reading.running, reading.ended) == (0, 1)

        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://duemq") as http:
            answer = await http.post("/v1/imports", json={"path": str(folder / "b.parquet")})
            assert (answer.status_code, answer.json()["code"]) == (422, "bad_delay_file")

    asyncio.run(scenario())
