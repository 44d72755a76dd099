"""What a node tells the others about where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.node_process import run_node
from duemq.model.errors import BadConfig


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("0.0.0.0:0", "", r"node\.listen = 0\.0\.0\.0 .* set node\.advertise"),
        ("[::]:0", "", r"node\.listen = :: .* set node\.advertise"),
        ("0:0", "", r"node\.listen = 0\.0\.0\.0 .* set node\.advertise"),
        ("127.0.0.1:0", "0.0.0.0", r"node\.advertise = 0\.0\.0\.0 .* set node\.advertise"),
        ("127.0.0.1:0", "[::]", r"node\.advertise = :: "),
        ("127.0.0.1:0", "::ffff:0.0.0.0", r"node\.advertise = ::ffff:0\.0\.0\.0 "),
        ("127.0.0.1:0", "node-1:8788", r"node\.advertise = 'node-1:8788': it must be a host without a port"),
        ("127.0.0.1:0", "http://node-1", r"it must be a host without a port"),
    ],
)
def test_a_node_that_nobody_could_reach_does_not_start(listen: str, advertise: str, told: str, tmp_path: Path) -> None:
    settings = Settings.load(
        overrides={
            "data": tmp_path / "data",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "zookeeper": {"hosts": "127.0.0.1:1"},
            "node": {"listen": listen, "advertise": advertise},
        }
    )
    with pytest.raises(BadConfig, match=told):
        asyncio.run(run_node(settings))
    assert not (tmp_path / "data").exists()
