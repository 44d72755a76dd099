"""Adapts the scenarios to a machine that is slower than a quiet one.

CHAOS_SLOW=5 multiplies the limits of sessions and requests by five, sends a fifth, and makes the cluster as small as
possible: two nodes and a proxy. The promises and comparisons stay the same.
"""

from __future__ import annotations

import os

SLOW = float(os.environ.get("CHAOS_SLOW", "1"))
