"""What a message may be: the constants, patterns and sentences that every way into duemq shares.

Each way has a checker of its own, for its own form of a message: JSON (`proxy/request/ingress.py`), headers of Kafka
(`plain.py`), Arrow columns (`storage/imports/row_rules.py`) and Spark columns (`pipeline/bulk_schedule/rules.py`). The
audit has its own copies on purpose: it judges the server.
"""

from __future__ import annotations

import re

from duemq.model.topics.group_topics import DEAD

TOPIC_BYTES = 249  # the longest name of a topic in Kafka
TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_BYTES}}}")
TOPIC_FORM = f"1 to {TOPIC_BYTES} characters of A-Z a-z 0-9 . _ -"
TOPIC_RULE = f"must be {TOPIC_FORM}"
# No topics: a stranger's record in one of duemq's ledgers would stop its shard, and brokers keep `__` for
# themselves.
RESERVED_TOPICS = ("duemq.", "__")

NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,128}")
"""A name that a client chose for a message, see `is_name`. Not `str.isprintable`, which knows more characters with each
version of Python: all replicas must find the same."""
NAME_BYTES = 200
NAME_RULE = f"1 to 128 characters, at most {NAME_BYTES} bytes of UTF-8, none of them a control character"

CONSUMER = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""The name of a reader over HTTP. Before ADR 61 also of a message: an older node finds any other name malformed."""


def is_name(text: str) -> bool:
    try:
        return NAME.fullmatch(text) is not None and (text.isascii() or len(text.encode()) <= NAME_BYTES)
    except UnicodeEncodeError:
        return False


LABEL = re.compile(r"[^,\x00-\x1f\x7f-\x9f]{1,128}")
MAX_LABELS = 16


RESERVED_HEADERS = "duemq-"
_CONSUMERS_HEADERS = "x-duemq-"
_HANDED_ON = frozenset((
    "x-duemq-redrives", "x-duemq-redriven-from", "x-duemq-redriven-origin", "x-duemq-relay-retried", "x-duemq-lease",
    "x-duemq-test",
))  # fmt: skip


def is_reserved_header(name: str, topic: str = "") -> bool:
    """Whether a caller over HTTP may not give a message for `topic` a header of this name: with such headers duemq, or
    a consumer that sends a message back, tells where it came from and why. Clients that send a record on keep
    `_HANDED_ON`. In a topic of dead letters a client tells what died, as consumers do."""
    lower = name.lower()
    if lower.startswith(_CONSUMERS_HEADERS):
        return lower not in _HANDED_ON and not topic.startswith(DEAD)
    return lower.startswith(RESERVED_HEADERS)


HEADER_NAME_CHARACTERS = 256

ID_CHARS = 32
