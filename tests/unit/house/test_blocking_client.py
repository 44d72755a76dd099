"""The two clients of the SDK are one text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.house.blocking_client import TARGET, blocking, sources


@pytest.mark.parametrize("source", sources(), ids=lambda path: path.name)
def test_the_blocking_client_is_what_the_asynchronous_one_makes(source: Path) -> None:
    assert (TARGET / source.name).read_text() == blocking(source), "run `make sdk`"


def test_no_blocking_module_is_without_a_source() -> None:
    assert sorted(path.name for path in TARGET.glob("[a-z]*.py")) == [path.name for path in sources()]
