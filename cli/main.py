"""The entry point of `duemq`. It imports next to nothing: `duemq health` is started every few seconds."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no child imports from the folder that somebody happens to be in
    if os.getpid() == 1:
        import signal

        # Without a handler a process 1 is not reached by it, and this one has none of its own before it serves.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.argv[1:2] == ["health"]:
        from duemq.cli.health import health

        sys.exit(health(sys.argv[2:]))
    # Before its first model pydantic looks for plugins in all packages that are installed: 50 ms, and there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if sys.argv[1:2] in (["serve"], ["node"], ["proxy"]):
        # What is imported stays: looking through it for garbage takes a tenth of the start. See `startup.run`.
        gc.disable()
    from duemq.cli.app import run

    run()
