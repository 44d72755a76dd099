"""Follows a topic over server-sent events: parsing, the current position, and when to reconnect. Pure.

Each event's `data` is one record, and its `id` is the cursor just after that record. So a broken stream resumes after
the last record.
"""

from __future__ import annotations

import orjson

from duemq.client.http import operations
from duemq.client.http.errors import Unavailable, Unreachable
from duemq.client.http.exchange import Call
from duemq.client.http.values import Record

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class TailFollower:
    """The state of one `tail`.

    Lines end only at LF, as the server writes them. HTTP libraries split text at every Unicode line break, which would
    break payloads that contain such a character.
    """

    def __init__(self, topic: str, after: str | None, consumer: str | None) -> None:
        self.topic, self.cursor, self._consumer = topic, after, consumer
        self._begun = False
        self._received = False
        self._pause_s = 0.0
        self._rest = b""
        self._data: list[bytes] = []
        self._id: str | None = None

    def call(self) -> Call:
        """The request that opens the stream, or reopens it after a break."""
        self._rest = b""
        self._forget_event()
        return operations.record_stream(self.topic, self.cursor, self._consumer)

    def opened(self) -> None:
        self._begun = True

    def feed(self, chunk: bytes) -> list[Record]:
        """Parse a piece of the stream. Returns the records that it completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        records = []
        for line in lines:
            if (record := self._line(line.removesuffix(b"\r"))) is not None:
                records.append(record)
        return records

    def passed(self, record: Record) -> None:
        """The caller has received `record`: a reopened stream starts after it."""
        self.cursor, self._received, self._pause_s = record.cursor, True, 0.0

    def lost(self, error: Unreachable | Unavailable | None) -> float:
        """The stream has ended. Returns the seconds to wait before it is reopened. `error`: None if the server ended
        the stream.

        Raises an error if retrying is pointless: the stream was never open, or the position is unknown.
        """
        if error is not None and not self._begun:
            raise error
        if self._received and self.cursor is None:
            detail = f"the stream of {self.topic} broke and the server had not said where: read on with records()"
            raise Unreachable(detail, outcome_unknown=False) from error
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return max(self._pause_s, error.retry_after_s if isinstance(error, Unavailable) else 0)

    def _line(self, line: bytes) -> Record | None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name == b"id":
                self._id = value.removeprefix(b" ").decode()
            return None
        data, cursor = b"\n".join(self._data), self._id
        self._forget_event()
        return Record.from_json(self.topic, orjson.loads(data), cursor) if data else None

    def _forget_event(self) -> None:
        self._data, self._id = [], None
