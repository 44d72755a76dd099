"""Reads messages from users' tables, for bulk schedule and send; bulk move uses its reader of times."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.columns.fields import with_fields
from duemq.pipeline.columns.mapping import CORRUPT, FIELDS, HEADER_PREFIX, HEADERS, HIDDEN, OWN, UNREAD, Columns, column

__all__ = [
    "CORRUPT",
    "FIELDS",
    "HEADERS",
    "HEADER_PREFIX",
    "HIDDEN",
    "OWN",
    "UNREAD",
    "Columns",
    "column",
    "with_fields",
]
