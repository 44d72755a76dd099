"""Four operations pass through no more files and forms than before."""

from __future__ import annotations

import pytest

from tests.support.house.walks import WALKS, Walk, missing


@pytest.mark.parametrize("walk", WALKS.values(), ids=[title.split(",", maxsplit=1)[0] for title in WALKS])
def test_a_walk_gets_no_longer(walk: Walk) -> None:
    """After a merge or a move, change its list; the numbers may only fall."""
    assert missing(walk.files) == []
    assert (len(walk.files), len(walk.forms)) == (walk.most_files, walk.most_forms)
