"""Several processes of one server: forked before anything is opened, watched, and stopped together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

Run = Callable[[int | None], None]

_ENDING = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = (*_ENDING, signal.SIGHUP)
_INIT = 1


def run_workers(count: int, run: Run) -> None:
    """Call `run` in this process (with None), or for a count above 1 in so many of its own, with their numbers.

    As process 1 of a container it calls it in another process in any case: process 1 inherits all orphans, and has
    to wait for them, or they stay as zombies.

    Returns when all have ended because they were told to. If one ends by itself the others are stopped, and the exit
    code is 1 (of a single one its own): whoever started us sees it at once, and starts all anew.
    """
    if count > 1:
        _watch(range(count), run)
    elif os.getpid() == _INIT:
        _watch([None], run)
    else:
        run(None)


def _watch(numbers: Sequence[int | None], run: Run) -> None:
    children: set[int] = set()
    end_signals: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if number in _ENDING:
            end_signals.append(number)
        for child in children:
            with suppress(ProcessLookupError):  # waited for a moment ago
                os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in numbers:
        children.add(_fork(number, run, as_before))
    if end_signals:  # before all of them were there
        pass_on(end_signals[-1], None)

    code = 0
    while children:
        child, status = os.wait()
        if child not in children:
            continue  # an orphan of somebody else's, which was given to us
        children.discard(child)
        ended = os.waitstatus_to_exitcode(status)
        if end_signals and (ended == 0 or -ended in end_signals):  # the latter where it had no handlers yet
            continue
        if len(numbers) == 1:
            code = ended if ended >= 0 else 128 - ended  # as shells say it
            continue
        code = 1
        if not end_signals:
            print(f"duemq: worker process {child} ended by itself, stopping the others", file=sys.stderr)
            pass_on(signal.SIGTERM, None)
    if code:
        sys.exit(code)


def _fork(number: int | None, run: Run, as_before: Callable[[], None]) -> int:
    """The process id of a new process, whose signals are `as_before`."""
    # A signal that comes in between would be heard by the parent's handler, in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        child = os.fork()
        if not child:
            as_before()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not child:
        _work(number, run)
    return child


def _work(number: int | None, run: Run) -> NoReturn:
    code = 1
    try:
        run(number)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        if not hasattr(error, "exit_code"):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
