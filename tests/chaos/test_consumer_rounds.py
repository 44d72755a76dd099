"""One round of each kind; `python -m tests.chaos.consumer_rounds` plays hundreds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import SEED
from tests.chaos.consumer_rounds import KINDS, Servers, play, servers
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]


@pytest.fixture(scope="module")
def all_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    need_servers()
    with servers(tmp_path_factory.mktemp("rounds")) as started:
        yield started


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_skips_nothing_and_doubles_only_what_was_in_hand(
    kind: str, all_servers: Servers, tmp_path: Path
) -> None:
    wrong, figures = asyncio.run(play(kind, 3_000, random.Random(SEED), all_servers, tmp_path))
    assert not wrong, (figures, "\n".join(path.read_text()[-3_000:] for path in tmp_path.glob("*.log")))
    print(figures)
