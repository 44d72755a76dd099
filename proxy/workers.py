"""Several processes of one server: forked before anything is opened, watched, and stopped together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_workers(count: int, run: Callable[[int | None], None]) -> None:
    """Call `run` in this process (with None), or for a count above 1 in so many of its own, with their numbers.

    Returns, or exits with code 1, when all have ended. If one dies by itself the others are stopped: whoever started
    us sees it at once, and starts all anew.
    """
    if count == 1:
        run(None)
        return
    children = {_fork(number, run) for number in range(count)}

    def pass_on(number: int, _: object) -> None:
        for child in children:
            os.kill(child, number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    failed = False
    while children:
        child, status = os.wait()
        children.discard(child)
        if os.waitstatus_to_exitcode(status) != 0 and not failed:
            failed = True
            print(f"duemq: worker process {child} ended by itself, stopping the others", file=sys.stderr)
            pass_on(signal.SIGTERM, None)
    if failed:
        sys.exit(1)


def _fork(number: int, run: Callable[[int | None], None]) -> int:
    child = os.fork()
    if child:
        return child
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
