"""A broadcasting member's offsets, in a file. Kafka cannot store them: each member reads all partitions, and Kafka
stores one position per group."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson
from aiokafka.structs import TopicPartition

from duemq.model.errors import CorruptStore, Rejected, StoreFailed
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.fsync import make_folder, write_durably

_FORMAT = 1


class FileOffsets:
    """All offsets of one member. The file is written as a whole under another name, and then renamed: after a crash it
    contains either the old offsets or the new ones.

    Methods block. They raise DiskFull or StoreFailed, and CorruptStore if the file has another format.
    """

    def __init__(self, folder: Path, group: str, member: str) -> None:
        self.path = folder / group / f"{member}.json"
        self.topics: frozenset[str] = frozenset()
        """Topics that the member subscribed to when it last stored its offsets, including missing topics."""
        self._offsets: dict[TopicPartition, int] = {}
        self._ids: dict[str, str] = {}
        self._lock = -1
        self._writing = threading.Lock()

    def lock(self) -> None:
        """Keep other processes from acting as the same member, until `unlock`. Raises Rejected `member_taken`."""
        with translate_errors(self.path):
            make_folder(self.path.parent)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                detail = f"another process has the offsets in {self.path}: give each process another `member`"
                raise Rejected("member_taken", detail, "member") from error
        self._lock = lock

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> dict[TopicPartition, int]:
        try:
            with translate_errors(self.path):
                raw = self.path.read_bytes()
        except StoreFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return {}
            raise
        try:
            document = orjson.loads(raw)
            if document["format"] != _FORMAT:
                raise CorruptStore(f"{self.path} has format {document['format']}; this duemq reads {_FORMAT}")
            self._offsets = {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, partitions in document["offsets"].items()
                for partition, offset in partitions.items()
            }
            self._ids = dict(document.get("ids", {}))
            self.topics = frozenset(map(str, document.get("topics", ()))).union(each.topic for each in self._offsets)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptStore(f"{self.path} is not a file of offsets: {error!r}") from error
        return dict(self._offsets)

    def recreated(self, ids: Mapping[str, str]) -> frozenset[str]:
        """Topics whose id differs from the stored one. Their offsets are dropped. `ids`: current ids by topic."""
        with self._writing:
            other = frozenset(topic for topic, id_ in ids.items() if self._ids.get(topic, id_) != id_)
            self._offsets = {each: offset for each, offset in self._offsets.items() if each.topic not in other}
            self._ids.update(ids)
        return other

    def save(self, offsets: Mapping[TopicPartition, int], subscribed: Iterable[str] = ()) -> None:
        """Store these offsets. They are durable once this returns."""
        with self._writing:
            self._offsets.update(offsets)
            self.topics = self.topics.union(subscribed, (each.topic for each in offsets))
            topics: dict[str, dict[str, int]] = {}
            for (topic, partition), offset in sorted(self._offsets.items()):
                topics.setdefault(topic, {})[str(partition)] = offset
            document = {"format": _FORMAT, "offsets": topics, "topics": sorted(self.topics), "ids": self._ids}
            with translate_errors(self.path):
                make_folder(self.path.parent)
                write_durably(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2))
