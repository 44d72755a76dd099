"""The offsets of a broadcasting member, in a file of its own: every member has all partitions, and Kafka keeps one
place per group."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import orjson
from aiokafka.structs import TopicPartition

from duemq.model.errors import CorruptStore
from duemq.model.foreign import translated
from duemq.storage.durable import sync_folder

_FORMAT = 1


class FileOffsets:
    """All offsets of one member. Written as a whole, to another name first: a crash leaves the old ones or the new
    ones.

    Methods block. They raise DiskFull or StoreFailed; and CorruptStore for a file that is none of ours.
    """

    def __init__(self, folder: Path, group: str, member: str) -> None:
        self.path = folder / group / f"{member}.json"
        self._offsets: dict[TopicPartition, int] = {}

    def load(self) -> dict[TopicPartition, int]:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = orjson.loads(raw)
            if found["format"] != _FORMAT:
                raise CorruptStore(f"{self.path} has format {found['format']}; this duemq reads {_FORMAT}")
            self._offsets = {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, partitions in found["offsets"].items()
                for partition, offset in partitions.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptStore(f"{self.path} is not a file of offsets: {error!r}") from error
        return dict(self._offsets)

    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns."""
        self._offsets.update(offsets)
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self._offsets.items()):
            topics.setdefault(topic, {})[str(partition)] = offset
        temporary = self.path.with_suffix(".new")
        with translated(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(orjson.dumps({"format": _FORMAT, "offsets": topics}, option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.path)
            sync_folder(self.path.parent)
