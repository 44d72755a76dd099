"""Requests without a grant have a pace, per address and in total, and callers with a key do not notice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duemq.web.admission.stranger_pace import ALL_PER_S, BURST_S, MAX_WAIT_S, OF_ADDRESS_PER_S, StrangerPace
from tests.support.virtual_loop import VirtualLoop
from tests.unit.http.test_http_access import Site

BURST, WAITING = int(OF_ADDRESS_PER_S * BURST_S), int(OF_ADDRESS_PER_S * MAX_WAIT_S)


def served_in(pace: StrangerPace, address: str, seconds: float, tries_per_s: int = 5_000) -> int:
    """How many of very many requests of `address` were not refused."""
    times = (100 + number / tries_per_s for number in range(int(seconds * tries_per_s)))
    return sum(pace.wait_s(address, now) is not None for now in times)


def test_an_address_has_a_burst_and_then_its_pace() -> None:
    served = served_in(StrangerPace(), "10.0.0.1", 10)
    assert served == pytest.approx(BURST + OF_ADDRESS_PER_S * 10 + WAITING, abs=2)


def test_an_address_that_floods_delays_no_other_address() -> None:
    pace = StrangerPace()
    served_in(pace, "10.0.0.1", 5)
    assert pace.wait_s("10.0.0.2", 105.0) == 0


def test_all_addresses_together_have_a_pace_however_many_there_are() -> None:
    pace = StrangerPace()
    served = sum(pace.wait_s(f"address {number}", 100 + number / 5_000) is not None for number in range(50_000))
    assert served == pytest.approx(ALL_PER_S * (BURST_S + 10 + MAX_WAIT_S), abs=2)


def test_a_flood_of_wrong_keys_waits_and_a_caller_with_a_key_does_not() -> None:
    async def scenario(site: Site) -> None:
        refused = Counter[str]()
        site.app.admission.on_stranger_refused = lambda: refused.update(["refused"])
        key, loop = await site.key("read"), asyncio.get_running_loop()
        began = loop.time()
        flood = [asyncio.ensure_future(site.ask("GET", "/v1/limits", "wrong")) for _ in range(BURST + WAITING + 100)]
        await asyncio.sleep(0.01)
        assert (await site.ask("GET", "/v1/limits", key)).status_code == 200
        assert loop.time() - began < 0.1
        answers = Counter(answer.status_code for answer in await asyncio.gather(*flood))
        assert loop.time() - began == pytest.approx(MAX_WAIT_S, abs=0.1)
        assert answers[401] == pytest.approx(BURST + WAITING, abs=5)
        assert refused["refused"] == answers[503] == len(flood) - answers[401]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(Site().run(scenario))
