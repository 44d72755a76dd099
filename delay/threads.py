"""Runs blocking work in a thread that the caller always waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run the work like `asyncio.to_thread`, but wait for its end even if the caller is cancelled.

    So the work has ended when the caller continues, for example by closing the store or opening the folder.
    """
    name = getattr(work, "__name__", "work")
    running = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs), name=f"thread {name}")
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
