"""Cursors of named consumers, kept where Kafka keeps its consumers' offsets, as the note beside an offset."""

from __future__ import annotations

import base64
from typing import Any

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from duemq.bus.kafka.wire import Wire
from duemq.model.errors import Rejected

# Brokers take notes of up to 4,096 bytes, base64 makes 4 of 3, and forget what was not stored for a week.
_MAX_CURSOR_BYTES = 3_000
_NO_GENERATION, _NO_MEMBER, _BROKERS_RETENTION = -1, "", -1


class Places:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, topic: str, consumer: str) -> bytes | None:
        group = _group(consumer)

        async def ask() -> bytes | None:
            response = await self._ask(group, OffsetFetchRequest(group, [(topic, [0])]))
            _check(getattr(response, "error_code", 0))
            for _, parts in response.topics:
                for _, offset, note, code in parts:
                    _check(code)
                    return base64.b64decode(note) if offset >= 0 else None
            return None

        return await self._wire.retried(ask)

    async def put(self, topic: str, consumer: str, cursor: bytes) -> None:
        """Raises Rejected for a cursor of more than 3,000 bytes."""
        if len(cursor) > _MAX_CURSOR_BYTES:
            raise Rejected("bad_cursor", f"a cursor has up to {_MAX_CURSOR_BYTES} bytes, not {len(cursor)}", "cursor")
        group = _group(consumer)
        note = base64.b64encode(cursor).decode()

        async def ask() -> None:
            topics = [(topic, [(0, 0, note)])]
            request = OffsetCommitRequest(group, _NO_GENERATION, _NO_MEMBER, _BROKERS_RETENTION, topics)
            for _, parts in (await self._ask(group, request)).topics:
                for _, code in parts:
                    _check(code)

        await self._wire.retried(ask)

    async def _ask(self, group: str, request: Any) -> Any:
        return await self._wire.ask_coordinator(CoordinationType.GROUP, group, request)


def _group(consumer: str) -> str:
    return f"duemq-place-{consumer}"


def _check(code: int) -> None:
    if code:
        raise errors.for_code(code)()
