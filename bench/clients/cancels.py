"""Sends cancels: single cancels, each at a given time, or many in one request."""

import asyncio
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.base.session import JSON, TROUBLE, Session, now_ms, session
from duemq.bench.base.workers import WorkerLink

CANCELLED, DELIVERED, UNKNOWN, PENDING, REFUSED, OPEN = range(6)
_BY_STATUS = {200: CANCELLED, 409: DELIVERED, 404: UNKNOWN, 202: PENDING}
_BY_WORD = {"cancelled": CANCELLED, "already_delivered": DELIVERED, "unknown": UNKNOWN, "pending": PENDING}
_ASK_AGAIN_S = 0.05
_ASK_AGAIN_TIMES = 200


@dataclass(frozen=True, slots=True)
class Answers:
    """One row per cancel, in the order of the ids: the final answer, when the cancel was sent (epoch ms), and how long
    it took (ms).

    `pending` counts the cancels whose first answer was 202. They were repeated until there was a final answer.
    """

    word: npt.NDArray[np.int8]
    asked_ms: npt.NDArray[np.float64]
    wait_ms: npt.NDArray[np.float64]
    pending: int
    refusal: str | None


async def cancel_singly(
    link: WorkerLink, url: str, ids: list[str], at_ms: npt.NDArray[np.float64] | None, connections: int
) -> Answers:
    """One DELETE per id, at `at_ms` (epoch ms each) or, without it, one after another on each connection."""
    order = np.argsort(at_ms, kind="stable") if at_ms is not None else np.arange(len(ids))
    word = np.full(len(ids), OPEN, np.int8)
    request_ms, wait = np.zeros(len(ids)), np.zeros(len(ids))
    pending, refusal, done = 0, None, 0
    lanes = asyncio.Semaphore(connections)

    async with session(url, connections) as http, asyncio.TaskGroup() as tasks:

        async def ask(row: int) -> None:
            nonlocal pending, refusal, done
            request_ms[row] = now_ms()
            try:
                word[row], detail = await _delete(http, ids[row])
                if word[row] == PENDING:
                    pending += 1
                    word[row] = await _settle(http, ids[row])
                elif word[row] == REFUSED:
                    refusal = refusal or detail
            finally:
                lanes.release()
            wait[row] = now_ms() - request_ms[row]
            done += 1
            link.progress(done)

        for row in order.tolist():
            if at_ms is not None and (ahead := (at_ms[row] - now_ms()) / 1000) > 0:
                await asyncio.sleep(ahead)
            await lanes.acquire()
            tasks.create_task(ask(row), name="cancel")
    return Answers(word, request_ms, wait, pending, refusal)


async def _delete(http: Session, message: str) -> tuple[int, str]:
    try:
        async with http.delete(f"/v1/messages/{message}") as answer:
            text = await answer.read()
    except TROUBLE:
        return OPEN, ""
    return _BY_STATUS.get(answer.status, REFUSED), f"HTTP {answer.status} {text[:200].decode(errors='replace')}"


async def _settle(http: Session, message: str) -> int:
    for _ in range(_ASK_AGAIN_TIMES):
        await asyncio.sleep(_ASK_AGAIN_S)
        word, _ = await _delete(http, message)
        if word != PENDING:
            return word
    return PENDING


async def cancel_many(
    link: WorkerLink, url: str, ids: list[str], batch: int, connections: int, until_decided: bool = False,
    per_s: float | None = None,
) -> Answers:  # fmt: skip
    """Send `POST /messages:cancel` requests with `batch` ids each. A row has the time and the duration of its request.

    `until_decided`: ids that were answered with 202 are sent again until they are decided, and the duration includes
    this. `per_s`: the rate of cancels; by default, each request is sent once the previous one is answered.
    """
    word = np.full(len(ids), OPEN, np.int8)
    request_ms, wait = np.zeros(len(ids)), np.zeros(len(ids))
    starts = iter(range(0, len(ids), batch))
    refusal: str | None = None
    done = pending = 0
    began_ms = now_ms()

    async with session(url, connections) as http, asyncio.TaskGroup() as tasks:

        async def ask(rows: npt.NDArray[np.int64]) -> bool:
            nonlocal refusal
            body = orjson.dumps({"ids": [ids[row] for row in rows]})
            try:
                async with http.post("/v1/messages:cancel", data=body, headers=JSON) as answer:
                    text = await answer.read()
            except TROUBLE:
                return False
            if answer.status == 200:
                word[rows] = [_BY_WORD.get(each.get("status"), REFUSED) for each in orjson.loads(text)["results"]]
            else:
                word[rows] = REFUSED
                refusal = refusal or f"HTTP {answer.status} {text[:200].decode(errors='replace')}"
            return answer.status == 200

        async def lane() -> None:
            nonlocal done, pending
            for first in starts:
                rows = np.arange(first, min(first + batch, len(ids)))
                if per_s and (ahead_s := first / per_s - (now_ms() - began_ms) / 1000) > 0:
                    await asyncio.sleep(ahead_s)
                request_ms[rows] = now_ms()
                decided = await ask(rows)
                pending += int(np.count_nonzero(word[rows] == PENDING))
                for _ in range(_ASK_AGAIN_TIMES if decided and until_decided else 0):
                    if not len(open_ := rows[word[rows] == PENDING]):
                        break
                    await asyncio.sleep(_ASK_AGAIN_S)
                    await ask(open_)
                wait[rows] = now_ms() - request_ms[first]
                if decided:
                    done += len(rows)
                    link.progress(done)

        for _ in range(connections):
            tasks.create_task(lane(), name="cancels")
    return Answers(word, request_ms, wait, pending, refusal)
