"""When messages of consumers and of relays come back. Apart from both: a relay needs no package of a consumer."""

from __future__ import annotations

from typing import Final

from duemq.model.timing import CLASSIC_LEVELS, parse_levels

LEVELS_MS: Final = parse_levels(CLASSIC_LEVELS)
"""The delays of levels 1 to 18, ms. They are the same everywhere, for a retry is a plain record
(docs/guides/kafka.md)."""

RETRIES: Final = 16
"""How often a message comes back before it goes to the dead letters."""
