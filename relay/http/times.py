"""Times in HTTP requests and answers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from duemq.client.consumer.message import Message

MAX_RETRY_AFTER_MS: Final = 86_400_000
_SECONDS: Final = re.compile(r"\d{1,10}", re.ASCII)


def timestamp(message: Message) -> str:
    """The due time as RFC 3339 text with ms; for a message that did not come through duemq, the record's timestamp."""
    due_ms = message.record.timestamp if message.origin.due_ms is None else message.origin.due_ms
    try:
        moment = datetime.fromtimestamp(due_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)  # the time is out of range: any producer may set the header
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{due_ms % 1000:03d}Z"


def retry_after_ms(value: str, now_s: float) -> int | None:
    """The delay in a Retry-After header, which contains seconds or an HTTP date; at most a day. None if it is
    invalid."""
    if _SECONDS.fullmatch(value.strip()):
        return min(int(value) * 1000, MAX_RETRY_AFTER_MS)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(0, round((moment.timestamp() - now_s) * 1000)), MAX_RETRY_AFTER_MS)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
