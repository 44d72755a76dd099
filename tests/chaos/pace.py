"""How the scenarios fit a machine that is slower than a quiet one.

CHAOS_SLOW=5 waits five times as long before a session or a request is over, sends a fifth, and makes the cluster as
small as it can be: two nodes and a proxy. What is promised and compared is the same.
"""

from __future__ import annotations

import os

SLOW = float(os.environ.get("CHAOS_SLOW", "1"))
