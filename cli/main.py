"""The entry point of `duemq`. It imports almost nothing, because `duemq health` runs every few seconds."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # child processes must not import from the current folder
    if os.getpid() == 1:
        import signal

        # Process 1 ignores SIGTERM unless it has a handler, and duemq installs other handlers only when it serves.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.argv[1:2] == ["health"]:
        from duemq.cli.health import health

        sys.exit(health(sys.argv[2:]))
    # Otherwise pydantic takes 50 ms to search all installed packages for plugins, and there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if sys.argv[1:2] in (["serve"], ["node"], ["proxy"]):
        # Imported modules are never freed: collecting garbage in them takes a tenth of the start. See `startup.run`.
        gc.disable()
    from duemq.cli.app import run

    run()
