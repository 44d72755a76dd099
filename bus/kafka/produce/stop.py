"""Stops a producer, whatever state it and the brokers are in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from duemq.bus.kafka.aiokafka_internals import fail_unsent, sender_task, transaction_waiter

log = logging.getLogger(__name__)

_STOP_S, _CUT_S = 2.0, 1.0


async def stop(producer: Any, *, failed: bool = False) -> None:
    """Stop a producer within a few seconds, and raise nothing. With `failed`, unsent batches are dropped."""
    if failed or not await _has_ended(producer.stop(), _STOP_S):
        await _cut(producer)
    notice_transaction(producer)


async def close_client(client: Any) -> None:
    """Close an AIOKafkaClient that is no longer used, within a few seconds, and raise nothing."""
    await _has_ended(client.close(), _CUT_S)


async def _cut(producer: Any) -> None:
    """Stop a producer without waiting. The producer's own `stop` waits forever for brokers that are out of reach."""
    for future in fail_unsent(producer):
        notice_error(future)
    sender = sender_task(producer)
    if sender is not None:
        sender.add_done_callback(notice_error)
        sender.cancel()
    await close_client(producer.client)  # ends the requests that the sender task still waits for
    for _ in range(2):
        if sender is not None and not sender.done():
            await asyncio.wait([sender], timeout=_CUT_S)
            sender.cancel()


async def _has_ended(work: Coroutine[Any, Any, None], limit_s: float) -> bool:
    """Whether this work ended in time and without an error. It is cancelled if it takes longer.

    Errors of the work are not raised. A client whose `close` was cancelled raises CancelledError from its next `close`,
    and that would end the caller's task.
    """
    task = asyncio.create_task(work, name="kafka producer stop")
    task.add_done_callback(notice_error)
    try:
        await asyncio.wait([task], timeout=limit_s)
    finally:
        task.cancel()
    if not task.done():
        await asyncio.wait([task], timeout=_CUT_S)
    ended = task.done() and not task.cancelled() and task.exception() is None
    if not ended:
        log.debug("a kafka producer does not stop: %r", task)
    return ended


def notice_transaction(producer: Any) -> None:
    """Mark the error of a producer's transaction as handled.

    When a sender was fenced, or when a topic may not be written to, aiokafka also fails a future that only
    `commit_transaction` would wait for.
    """
    if (waiter := transaction_waiter(producer)) is not None:
        notice_error(waiter)


def notice_error(future: asyncio.Future[Any]) -> None:
    """Mark a future's error as handled, if it has one."""
    if future.done() and not future.cancelled():
        future.exception()
