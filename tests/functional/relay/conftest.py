"""Endpoints of the tests' own, and outlets to them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.outlets.http_site import Endpoint


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    yield endpoint
    await endpoint.stop()
