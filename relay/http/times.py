"""Times in requests and answers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from duemq.client.consumer.message import Message

MAX_RETRY_AFTER_MS: Final = 86_400_000
_SECONDS: Final = re.compile(r"\d{1,10}", re.ASCII)


def timestamp(message: Message) -> str:
    """The due time in RFC 3339 with ms; the record's time if the message did not come through duemq."""
    due_ms = message.record.timestamp if message.origin.due_ms is None else message.origin.due_ms
    try:
        moment = datetime.fromtimestamp(due_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)  # the header may come from any producer
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{due_ms % 1000:03d}Z"


def retry_after_ms(value: str, now_s: float) -> int | None:
    """Parses Retry-After: seconds or an HTTP date, capped at a day. None if it is neither."""
    if _SECONDS.fullmatch(value.strip()):
        return min(int(value) * 1000, MAX_RETRY_AFTER_MS)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(0, round((moment.timestamp() - now_s) * 1000)), MAX_RETRY_AFTER_MS)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
