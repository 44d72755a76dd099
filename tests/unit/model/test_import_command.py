"""The command that imports a file: each Python must judge it alike, or replicas differ."""

from __future__ import annotations

import pytest

from duemq.model.errors import Rejected
from duemq.model.messages.import_command import ImportCommand

FIELDS = {"sha256": "a" * 64, "size": 1, "window": 0, "rows": 1}


@pytest.mark.parametrize("character", ["ü", " ", "\u00a0", "\u200b", "\u2028", "\ue000", "\U0001fae8", "\U0003fffd"])
def test_a_path_is_no_matter_of_the_unicode_that_a_python_knows(character: str) -> None:
    path = f"/shared/{character}.parquet"
    assert ImportCommand.of({"path": path, **FIELDS}).path == path


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1b", "\x7f", "\x85"])
def test_a_path_has_no_control_characters(character: str) -> None:
    with pytest.raises(Rejected, match="no control characters"):
        ImportCommand.of({"path": f"/shared/{character}", **FIELDS})
