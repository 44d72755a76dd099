"""The entry point of `duemq`. It imports next to nothing: `duemq health` runs every few seconds."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # children must not import from the current folder
    if os.getpid() == 1:
        import signal

        # As process 1 it would ignore SIGTERM without a handler, and it installs others only when it serves.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.argv[1:2] == ["health"]:
        from duemq.cli.health import health

        sys.exit(health(sys.argv[2:]))
    # Else pydantic searches all installed packages for plugins before its first model: 50 ms, and there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if sys.argv[1:2] in (["serve"], ["node"], ["proxy"]):
        # Imported modules stay: collecting garbage in them takes a tenth of the start. See `startup.run`.
        gc.disable()
    from duemq.cli.app import run

    run()
