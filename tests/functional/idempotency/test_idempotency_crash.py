"""kill -9 at each step of the work of a key: the effect takes place at least once, or where asked for at most once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.functional.idempotency.idempotency_worker import KEYS, LEASE_MS, T0, noted, run, work

pytestmark = pytest.mark.slow

NAMES = {str(number) for number in range(KEYS)}
STORE_STEPS, WORK_STEPS = ["before_write", "after_write", "after_sync"], ["begun", "worked", "finished"]


def reconcile(folder: Path, url: str, at_most_once: bool) -> None:
    """Another process takes over, when the leases of the dead one are over."""
    before, acknowledged = noted(folder, "effects"), noted(folder, "acknowledged")
    asyncio.run(work(folder, url, at_most_once, T0 + LEASE_MS))
    effects, doubts = noted(folder, "effects"), set(noted(folder, "doubts"))
    if at_most_once:
        assert max(effects.values()) == 1
        assert NAMES - set(effects) <= doubts, "what never took effect is told"
        assert set(noted(folder, "acknowledged")) | doubts == NAMES
    else:
        assert set(effects) == NAMES and not doubts
        assert set(noted(folder, "acknowledged")) == NAMES
        twice = {name for name, count in effects.items() if count > 1}
        assert twice <= set(before) - set(acknowledged), "only what was not finished is begun again"
    assert all(effects[name] == 1 for name in acknowledged), "what was acknowledged is not done again"


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("step", STORE_STEPS + WORK_STEPS)
def test_kill_9_with_rocksdb(tmp_path: Path, step: str, number: int, at_most_once: bool) -> None:
    assert run(tmp_path, "", at_most_once, step, number) == -9
    reconcile(tmp_path, "", at_most_once)


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("step", WORK_STEPS)
def test_kill_9_with_redis(tmp_path: Path, redis_url: str, step: str, at_most_once: bool) -> None:
    assert run(tmp_path, redis_url, at_most_once, step, 5) == -9
    reconcile(tmp_path, redis_url, at_most_once)


def test_at_most_once_gives_up_what_was_begun_and_otherwise_it_is_done_twice(tmp_path: Path) -> None:
    """The same crash, between the work and its record, with either promise."""
    doubts, effects = [], []
    for at_most_once in (True, False):
        folder = tmp_path / str(at_most_once)
        folder.mkdir()
        run(folder, "", at_most_once, "worked", 1)
        reconcile(folder, "", at_most_once)
        doubts.append(len(noted(folder, "doubts")))
        effects.append(max(noted(folder, "effects").values()))
    assert doubts[0] >= 1 and doubts[1] == 0
    assert effects == [1, 2]
