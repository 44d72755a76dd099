"""The rules for messages: constants, patterns and sentences that all inputs of duemq share.

Each input has its own code to check its form of a message: JSON (`proxy/request/ingress.py`), Kafka headers
(`model/messages/plain.py`), Arrow columns (`storage/imports/row_rules.py`) and Spark columns
(`pipeline/bulk_schedule/rules.py`). The audit has its own copies of the rules on purpose, because it checks the server.
"""

from __future__ import annotations

import re

from duemq.model.topics.group_topics import DEAD

TOPIC_BYTES = 249  # the longest name of a topic in Kafka
TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_BYTES}}}")
TOPIC_FORM = f"1 to {TOPIC_BYTES} characters of A-Z a-z 0-9 . _ -"
TOPIC_RULE = f"must be {TOPIC_FORM}"
# Prefixes that messages' topics must not have: a foreign record in a ledger would stop its shard, and brokers reserve
# `__`.
RESERVED_TOPICS = ("duemq.", "__")

NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,128}")
"""A name that a client chose for a message, see `is_name`. The rule does not use `str.isprintable`, which differs
between Python versions, because all replicas must agree."""
NAME_BYTES = 200
NAME_RULE = f"1 to 128 characters, at most {NAME_BYTES} bytes of UTF-8, none of them a control character"

CONSUMER = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""The name of a reader over HTTP. Before ADR 61 a message's name had this form, too: to an older node, any other name
is malformed."""


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
    """Whether an HTTP caller must not set a header with this name on a message to `topic`. duemq, and consumers that
    send a message back, use such headers to record the message's origin and the reason. Clients that forward a record
    may keep the headers in `_HANDED_ON`. On a message to a topic of dead letters, clients may set what consumers
    set."""
    lower = name.lower()
    if lower.startswith(_CONSUMERS_HEADERS):
        return lower not in _HANDED_ON and not topic.startswith(DEAD)
    return lower.startswith(RESERVED_HEADERS)


HEADER_NAME_CHARACTERS = 256

ID_CHARS = 32
