"""`python -m tests.abuse` on a small scale: what is exact must hold, and the server must live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.abuse.base import Sizes
from tests.abuse.run import Plan, run

SMALL = Sizes(
    idle=60, streams=20, polls=5, slow_heads=10, head_bytes=1 << 20, batch_bytes=1 << 20, topics_per_minute=600,
    reopen_s=1.0,
)  # fmt: skip


@pytest.mark.slow
def test_honest_messages_are_exact_under_some_abuse(tmp_path: Path) -> None:
    account = run(Plan(minutes=0.1, quiet_s=2, rate=100, sizes=SMALL), tmp_path)
    assert not account.failure, account.failure
    wrong = [check for check in account.checks() if check.exact and not check.holds]
    assert not wrong, account.table()
    account.write(tmp_path / "abuse.json")
