"""How long a test waits for what it expects, in seconds. It then fails.

TEST_SLOW=4 waits four times as long: for a slow machine, or a busy one. `make test` runs two tests at a time, and
sets it to 2.
"""

from __future__ import annotations

import os

_SLOW = float(os.environ.get("TEST_SLOW", "1"))

WITHIN_S = 15.0 * _SLOW
"""Within a process, or between two that are up."""

SERVERS_S = 60.0 * _SLOW
"""For what servers do at their own pace: elections, rebalances, sessions that end, thousands of messages."""

PROCESS_S = 300.0
"""Until a process has started or ended, which may take minutes on a shared machine."""
