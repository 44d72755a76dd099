"""`python -m tests.abuse.strangers` for ten seconds: the exact checks must hold, and the server must stay small."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.abuse import strangers

SECONDS = float(os.environ.get("STRANGERS_SECONDS", "10"))


@pytest.mark.slow
def test_strangers_slow_no_caller_with_a_key_and_drop_no_act(tmp_path: Path) -> None:
    quiet, beside = strangers.run(tmp_path, SECONDS, rate=500, share=0.2)
    assert quiet.exact and beside.exact, f"alone: {quiet}; beside strangers: {beside}"
    assert beside.denials > 1_000 and beside.half_logins >= 1_000
    assert beside.peak_bytes < strangers.MAX_BYTES, beside
