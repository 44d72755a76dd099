"""Runs several processes of one server: forked before anything is opened, watched, and stopped together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

Run = Callable[[int | None], None]

_ENDING = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = (*_ENDING, signal.SIGHUP)
_INIT = 1


def run_workers(count: int, run: Run) -> None:
    """Call `run` in this process (with None), or, if `count` is above 1, in that many child processes, with their
    numbers.

    As process 1 in a container it always uses child processes: process 1 inherits all orphans and has to wait for them,
    or they stay as zombies.

    Returns when all have ended on request. If one ends without a request, the others are stopped, and the exit code is
    1 (if there is only one, its own code): the supervisor notices at once, and restarts all.
    """
    if count > 1:
        _watch(range(count), run)
    elif os.getpid() == _INIT:
        _watch([None], run)
    else:
        run(None)


def _watch(numbers: Sequence[int | None], run: Run) -> None:
    """Fork, then handle one signal after another.

    All signals are blocked and awaited. With handlers, a signal that arrives immediately before `os.wait` sleeps would
    not be handled until a worker ends.
    """
    awaited = {*_SIGNALS, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    handlers = {number: signal.signal(number, _nothing) for number in awaited}  # ignored signals could not be awaited

    def as_before() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    children = {_fork(number, run, as_before) for number in numbers}
    end_signals: list[int] = []

    def pass_on(number: int) -> None:
        if number in _ENDING:
            end_signals.append(number)
        for child in children:
            with suppress(ProcessLookupError):  # ended, but not waited for yet
                os.kill(child, number)

    code = 0
    while children:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            pass_on(number)
            continue
        for child, ended in _ended_children():
            if child not in children:
                continue  # an orphan that this process inherited
            children.discard(child)
            if end_signals and (ended == 0 or -ended in end_signals):  # the latter if the child had no handlers yet
                continue
            if len(numbers) == 1:
                code = ended if ended >= 0 else 128 - ended  # as shells do
                continue
            code = 1
            if not end_signals:
                print(f"duemq: worker process {child} ended unexpectedly, stopping the others", file=sys.stderr)
                pass_on(signal.SIGTERM)
    as_before()
    if code:
        sys.exit(code)


def _nothing(number: int, frame: object) -> None:
    """Do nothing. This is a handler, because an ignored signal could not be awaited."""


def _ended_children() -> Iterator[tuple[int, int]]:
    """The ids and exit codes of all ended children, because several signals with one number arrive as one signal."""
    with suppress(ChildProcessError):  # there are no more
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            yield child, os.waitstatus_to_exitcode(status)


def _fork(number: int | None, run: Run, as_before: Callable[[], None]) -> int:
    """Fork, and return the id of the new process, in which `as_before` restores the signals."""
    child = os.fork()
    if not child:
        as_before()
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
