"""What is the memory store's own: it keeps no more than what it has to remember."""

from __future__ import annotations

import pytest

from duemq.client.idempotency.base import Done
from duemq.client.idempotency.memory import MemoryStore
from tests.support.consumer.idempotency_world import MINUTE, T0

pytestmark = pytest.mark.anyio


async def test_keys_that_are_released_leave_nothing_behind() -> None:
    store = MemoryStore()
    await store.begin(b"done", "a", T0, MINUTE, MINUTE)
    await store.finish(b"done", "a", b"1", T0, 60 * MINUTE)
    for number in range(5_000):
        await store.begin(b"%d" % number, "a", T0, MINUTE, MINUTE)
        await store.release(b"%d" % number, "a")
    assert len(store.expiries) < 2_000
    assert await store.begin(b"done", "b", T0 + 60 * MINUTE - 1, MINUTE, MINUTE) == Done(b"1")
    assert await store.expire(T0 + 60 * MINUTE) == 1
    assert not store.rows and not store.expiries
