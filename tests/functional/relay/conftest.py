"""Endpoints of the tests' own, and a relay on a log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.outlets.http_site import Endpoint
from tests.support.relay.relay_site import Site


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


@pytest.fixture
def site() -> Site:
    return Site()
