"""Cursors of named consumers, stored among Kafka's consumer offsets, as the metadata of offsets.

A cursor that is too long for one offset is cut into pieces: piece n is the metadata of partition n, and the "offset" of
partition 0 is the number of further pieces. One request writes all pieces, and brokers store the request as a whole.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from duemq.bus.base import GroupPosition
from duemq.bus.kafka.requests.wire import Wire
from duemq.model.errors import LogFailed, Rejected, Unavailable
from duemq.model.messages.names import MAX_READERS, PURGES, CursorName, reader_of

# Brokers accept metadata of up to 4,096 characters (offset.metadata.max.bytes); base64 turns 3 bytes into 4.
_PIECE: Final = 4_000
_MAX_PIECES: Final = 8
MAX_CURSOR_BYTES: Final = _MAX_PIECES * _PIECE // 4 * 3
# Without this, brokers would delete a cursor offsets.retention.minutes (by default a week) after it was stored, even
# while its consumer polls every second.
_RETENTION_MS: Final = 10 * 365 * 24 * 3_600_000
_NO_GENERATION, _NO_MEMBER = -1, ""
_NO_PLACE: Final = -1  # the brokers' value for a partition without an offset
_HAS_MEMBERS: Final = (errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.RebalanceInProgressError)
T = TypeVar("T")


class ConsumerOffsets:
    """`groups`: the prefix of the groups that store cursors. The offsets of these groups are not positions in
    topics."""

    def __init__(self, wire: Wire, groups: str) -> None:
        self._wire, self._groups = wire, groups

    async def get(self, topic: str, consumer: CursorName) -> bytes | None:
        group = self._groups + consumer

        async def ask() -> bytes | None:
            response = await self.ask_coordinator(group, OffsetFetchRequest(group, [(topic, list(range(_MAX_PIECES)))]))
            _check(getattr(response, "error_code", 0))
            notes: dict[int, str] = {}
            further = -1
            for _, parts in response.topics:
                for partition, offset, note, code in parts:
                    _check(code)
                    notes[partition] = note
                    if partition == 0:
                        further = offset
            return base64.b64decode("".join(notes[piece] for piece in range(further + 1))) if further >= 0 else None

        return await self._retry(ask, group, topic)

    async def put(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        """Store a cursor for ten years, or until it is replaced; an empty cursor deletes the stored one. Raises
        Rejected for a cursor that is too long."""
        if len(cursor) > MAX_CURSOR_BYTES:
            detail = f"a stored cursor has at most {MAX_CURSOR_BYTES} bytes, not {len(cursor)}"
            raise Rejected("bad_cursor", detail, "cursor")
        group = self._groups + consumer
        note = base64.b64encode(cursor).decode()
        pieces = [note[at : at + _PIECE] for at in range(0, len(note), _PIECE)] or [""]
        further = len(pieces) - 1 if cursor else _NO_PLACE
        parts = [(at, further if at == 0 else 0, piece) for at, piece in enumerate(pieces)]
        kept_ms = _RETENTION_MS if cursor else 1

        async def ask() -> None:
            request = OffsetCommitRequest(group, _NO_GENERATION, _NO_MEMBER, kept_ms, [(topic, parts)])
            for _, answers in (await self.ask_coordinator(group, request)).topics:
                for _, code in answers:
                    _check(code)

        await self._retry(ask, group, topic)

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        """Commit the offsets of a consumer group. Raises Rejected `group_at_work` if it has members."""
        parts = [(partition, offset, "") for partition, offset in enumerate(offsets)]

        async def ask() -> None:
            request = OffsetCommitRequest(group, _NO_GENERATION, _NO_MEMBER, _RETENTION_MS, [(topic, parts)])
            for _, answers in (await self._wire.ask_coordinator(CoordinationType.GROUP, group, request)).topics:
                for _, code in answers:
                    _check(code)

        try:
            await self._retry(ask, group, topic)
        except LogFailed as error:
            if not isinstance(error.__cause__, _HAS_MEMBERS):
                raise
            detail = f"consumers of group {group} are at work, and only they may set its offsets"
            raise Rejected("group_at_work", detail, "topics") from error

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        """The committed offset of a consumer group, with its metadata."""

        async def ask() -> GroupPosition | None:
            response = await self.ask_coordinator(group, OffsetFetchRequest(group, [(topic, [partition])]))
            _check(getattr(response, "error_code", 0))
            for _, parts in response.topics:
                for _, offset, metadata, code in parts:
                    _check(code)
                    return GroupPosition(topic, offset, metadata or "") if offset >= 0 else None
            return None

        return await self._retry(ask, group, topic)

    async def readers(self, topic: str, partitions: int) -> list[str]:
        """See `Bus`. Leaves out groups that duemq's user may not see."""

        async def reads(group: str) -> bool:
            try:
                response = await self.ask_coordinator(
                    group, OffsetFetchRequest(group, [(topic, list(range(partitions)))])
                )
            except errors.KafkaError:
                return False
            return any(offset >= 0 for _, parts in response.topics for _, offset, *_ in parts)

        groups = {group for group, _ in await self._wire.groups()} - {self._groups + PURGES}
        some = sorted(groups)[:MAX_READERS]
        answers = await asyncio.gather(*map(reads, some))
        own = self._groups
        return sorted(
            reader_of(group.removeprefix(own) if group.startswith(own) else f"/{group}")
            for group, answer in zip(some, answers, strict=True)
            if answer
        )

    async def _retry(self, ask: Callable[[], Awaitable[T]], group: str, topic: str) -> T:
        async def attempt() -> T:
            try:
                return await ask()
            except errors.GroupAuthorizationFailedError as error:
                detail = f"Kafka does not let duemq's user read group {group}: allow READ on {self._like(group)}"
                raise Unavailable(detail) from error
            except errors.TopicAuthorizationFailedError as error:
                raise Unavailable(f"Kafka does not let duemq's user read topic {topic}: allow READ on it") from error
            except errors.OffsetMetadataTooLargeError as error:
                detail = f"the brokers take no note of {_PIECE} characters: raise offset.metadata.max.bytes"
                raise Rejected("bad_cursor", detail, "cursor") from error

        return await self._wire.retry(attempt)

    def _like(self, group: str) -> str:
        return f"groups {self._groups}*" if group.startswith(self._groups) else f"group {group}"

    async def ask_coordinator(self, group: str, request: Any) -> Any:
        return await self._wire.ask_coordinator(CoordinationType.GROUP, group, request)


def _check(code: int) -> None:
    if code:
        raise errors.for_code(code)()
