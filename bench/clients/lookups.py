"""Look-ups by id, one after another, as a client that waits for each answer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.harness.session import TROUBLE, now_ms, session
from duemq.bench.harness.workers import WorkerLink


@dataclass(frozen=True, slots=True)
class LookedUp:
    """One row per look-up, in the order of the ids: whether it was there as scheduled, and how long it took (ms)."""

    scheduled: npt.NDArray[np.bool_]
    wait_ms: npt.NDArray[np.float64]


async def get_singly(link: WorkerLink, url: str, ids: list[str]) -> LookedUp:
    """One GET per id on one connection."""
    scheduled, wait = np.zeros(len(ids), np.bool_), np.zeros(len(ids))
    async with session(url, 1) as http:
        for row, message in enumerate(ids):
            began = now_ms()
            try:
                async with http.get(f"/v1/messages/{message}") as answer:
                    text = await answer.read()
            except TROUBLE:
                continue
            finally:
                wait[row] = now_ms() - began
            scheduled[row] = answer.status == 200 and orjson.loads(text)["status"] == "scheduled"
            link.progress(row + 1)
    return LookedUp(scheduled, wait)
