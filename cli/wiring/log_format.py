"""Log lines: a sentence with fields, as text for readers or as JSON for programs. Times are marked as UTC."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Literal

import orjson

from duemq.model.printable import escaped

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogFormatter(logging.Formatter):
    """Writes times such as 2026-11-22T13:30:34.049Z, comparable between machines and across clock changes."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class TextLines(LogFormatter):
    """Lines for readers. Quoted text, such as a caller's, can neither start a line nor move the cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n  ".join(map(escaped, super().formatException(ei).split("\n")))


class JsonLines(LogFormatter):
    """One JSON object per line: time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in record.__dict__.items() if key not in _PLAIN},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(level: str, form: Literal["text", "json"]) -> None:
    """Log to stderr. Other libraries log only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("duemq").setLevel(level.upper())
