"""What outlets of RocketMQ are tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rocketmq.fake_proxy import FakeProxy


@pytest.fixture
def proxy() -> Iterator[FakeProxy]:
    with FakeProxy() as proxy:
        yield proxy
