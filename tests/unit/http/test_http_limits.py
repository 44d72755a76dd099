"""What a server says that it accepts, and what the pipeline makes of it."""

from __future__ import annotations

import httpx
import pytest

from duemq.client import Client
from duemq.client.http.values import Limits as Told
from duemq.model.timing import TimePolicy
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.logs.server import limits_of, message_limits
from duemq.proxy.request.ingress import MessageLimits
from duemq.storage.limits import ImportLimits
from tests.support.http.http_site import Ask, FakeGateway, with_app

OWN = MessageLimits(10, 2, 30, 4, 50, 6000, ("orders.*", "mails"), TimePolicy(max_delay_ms=7_000_000))


def test_a_server_tells_the_limits_that_it_judges_by() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = await ask("GET", "/v1/limits")
        assert answer.status_code == 200 and answer.headers["Cache-Control"] == "no-store"
        told = Told.from_json(answer.json())
        assert (told.shards, told.topics, told.max_delay_ms) == (2, ("orders.*", "mails"), 7_000_000)
        assert message_limits(told) == ImportLimits(10, 2, 30, 4, ("orders.*", "mails"))
        assert (told.max_batch_items, told.max_batch_bytes) == (50, 6000)
        assert (told.imports_files, told.max_files, told.max_file_rows, told.min_lead_ms) == (
            False, 20_000, 2**31 - 1, 120_000
        )  # fmt: skip

    with_app(scenario, limits=OWN)


def test_a_server_that_is_too_old_to_tell_is_named() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"code": "not_found", "detail": "there is nothing at /v1/limits"})

    with Client(transport=httpx.MockTransport(answer)) as client, pytest.raises(JobFailed, match="older than this"):
        limits_of(client)
