"""The one reader of users' tables: what of a row is what of a message, and when it is due.

Bulk schedule, send and import make messages of what it reads; mass move reads new times.
"""

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
