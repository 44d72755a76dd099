"""The administrative log on Kafka: two processes, each with a bus of its own."""

from __future__ import annotations

import asyncio
import time

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.cluster.admin import log as admin_log
from duemq.cluster.admin.api_keys import ApiKeys
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.topics.internal_topics import ADMIN, create_logs
from duemq.model.callers.access import id_of

pytestmark = [pytest.mark.anyio, pytest.mark.servers]


def clock() -> int:
    return time.time_ns() // 1_000_000


async def test_a_revoked_key_is_refused_by_the_other_process_within_a_second(
    two: tuple[KafkaBus, KafkaBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_log, "_KEPT_RECORDS", 5)
    await create_logs(two[0], 1)
    one, other = (ApiKeys(AdminLog(lambda bus=bus: bus, clock), clock) for bus in two)  # type: ignore[misc]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keys.admin.run()) for keys in (one, other)]
        await one.admin.ready.wait()
        await other.admin.ready.wait()
        took: list[float] = []
        for number in range(12):
            text = (await one.make({"name": f"key {number}", "scopes": ["send"]}, "test"))["key"].encode()
            id_ = id_of(text)
            assert id_ is not None
            async with asyncio.timeout(10):
                while id_ not in other.by_id:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert other.by_id[id_].opened_by(text, clock())
            await one.revoke(id_, "test")
            revoked = time.monotonic()
            async with asyncio.timeout(10):
                while other.by_id[id_].opened_by(text, clock()):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            took.append(time.monotonic() - revoked)
        assert sorted(took)[len(took) // 2] < 1.0
        assert await two[1].start_offset(ADMIN, 0) > 0  # it was shortened meanwhile
        late = ApiKeys(AdminLog(lambda: two[1], clock), clock)
        tasks.append(group.create_task(late.admin.run()))
        await late.admin.ready.wait()
        assert late.by_id == one.by_id == other.by_id
        for task in tasks:
            task.cancel()
