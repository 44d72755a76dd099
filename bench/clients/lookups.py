"""Look-ups by id or key, one after another, by a client that waits for each answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.base.session import TROUBLE, now_ms, session
from duemq.bench.base.workers import WorkerLink


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """One row per look-up, in the order of the ids: whether the message was found as scheduled, and how long it took
    (ms)."""

    scheduled: npt.NDArray[np.bool_]
    wait_ms: npt.NDArray[np.float64]


async def get_singly(link: WorkerLink, url: str, ids: list[str]) -> LookupTimes:
    """Send one GET per id, on one connection."""
    return await _look_up(link, url, [f"/v1/messages/{message}" for message in ids], _is_scheduled)


async def find_singly(link: WorkerLink, url: str, keys: list[str]) -> LookupTimes:
    """Send one search per key, on one connection. Each search is for one message."""
    paths = [f"/v1/messages?key={quote(key)}&order=newest" for key in keys]
    return await _look_up(link, url, paths, _is_one_scheduled)


async def _look_up(
    link: WorkerLink, url: str, paths: list[str], is_scheduled: Callable[[dict[str, Any]], bool]
) -> LookupTimes:
    scheduled, wait = np.zeros(len(paths), np.bool_), np.zeros(len(paths))
    async with session(url, 1) as http:
        for row, path in enumerate(paths):
            began = now_ms()
            try:
                async with http.get(path) as answer:
                    text = await answer.read()
            except TROUBLE:
                continue
            finally:
                wait[row] = now_ms() - began
            scheduled[row] = answer.status == 200 and is_scheduled(orjson.loads(text))
            link.progress(row + 1)
    return LookupTimes(scheduled, wait)


def _is_scheduled(state: dict[str, Any]) -> bool:
    return bool(state["status"] == "scheduled")


def _is_one_scheduled(page: dict[str, Any]) -> bool:
    return [state["status"] for state in page["messages"]] == ["scheduled"]
