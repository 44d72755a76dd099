"""Some seconds of `tests/fuzz/fuzz_http.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.e2e.server import Server
from tests.fuzz.fuzz_http import GROWTH_MIB, OPTIONS, check, hammer, open_sockets, resident_mib

_CASES = 1500
_SEED = 1


def test_raw_http_at_random(tmp_path: Path) -> None:
    with Server(tmp_path / "data", *OPTIONS) as server:
        server.start()
        sockets = open_sockets(server) + 1  # the connection that asks for its health
        tally = asyncio.run(hammer(server.port, _SEED, cases=_CASES))
        check(server, tally, sockets)
        assert {200, 201, 400, 403, 404, 405, 421} <= tally.statuses.keys()
        before = resident_mib(server)
        check(server, asyncio.run(hammer(server.port, _SEED + _CASES, cases=_CASES)), sockets)
        assert resident_mib(server) - before < GROWTH_MIB
        assert server.stop() == 0, server.log
