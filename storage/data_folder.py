"""The data folder: its lock, its format, and its secrets.

`duemq.json` contains the format version, the number of shards and the cluster's id. To raise `VERSION`, document the
migration in CHANGELOG.md, and either keep a reader for the old format or refuse it with that advice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from duemq.model.disk_use import DiskUse
from duemq.model.errors import DiskFull, FolderRefused
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import OWN
from duemq.storage.checkpoint.replica_swap import finish_replacements
from duemq.storage.fsync import make_folder, write_durably

# A cluster with a prefix has the second version, so that an older duemq, which would use another cluster's topics,
# refuses the folder.
VERSION, WITH_PREFIX = 1, 2
SNAPSHOTS = "snapshots"  # contains snapshots for peers to copy, which are removed at the next start
META = "duemq.json"
SECRET = "id.key"
LOCK = "lock"
LOG_ID = "log.id"  # not in backups, because a restored log continues differently from the original
BACKUP = "backup.json"  # marks a folder as a backup
RESTORE = "restore.json"  # exists during a restore
_BLOCK_BYTES = 512  # the unit of st_blocks on every file system
_UNFINISHED = frozenset((LOCK, SECRET, "id.new", "duemq.new"))  # all files that an interrupted creation can leave


@dataclass(frozen=True, slots=True)
class FolderInfo(ClusterIdentity):
    """The metadata of a data folder, and its path."""

    path: Path = field(kw_only=True)


def disk_use(path: Path) -> DiskUse:
    """The use of the disk that a folder is on. Raises StoreFailed."""
    with translate_errors(path):
        stat = os.statvfs(path)
    return DiskUse((stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize)


class Folder:
    """A data folder that this process has locked until `close`."""

    def __init__(self, info: FolderInfo, lock: int) -> None:
        self.info = info
        self._lock = lock

    @staticmethod
    def open(
        path: Path, shards: int | None = None, identity: ClusterIdentity | None = None, prefix: str = OWN
    ) -> Folder:
        """Lock the folder. A new or empty folder is initialized: for the cluster of `identity`, or for a new cluster
        (with `shards` shards, 1 if None, and this prefix). An initialization that a crash interrupted is finished. If
        everyone may enter the folder, access is restricted to its owner.

        Raises FolderRefused if another process has locked the folder, or if it is not duemq's, has another format or
        belongs to another cluster.
        """
        if identity is not None and shards is not None and shards != identity.shards:
            raise FolderRefused(
                f"cluster {identity.cluster} has {identity.shards} shards, the configuration says {shards}: "
                f"a cluster keeps its number. Set shards = {identity.shards} or leave it out."
            )
        try:
            make_folder(path)
            os.listdir(path)
        except OSError as error:
            raise _cannot_use(path, error) from error
        _refuse_backup(path)
        meta = path / META
        if not meta.exists() and not _UNFINISHED.issuperset(os.listdir(path)):
            raise FolderRefused(
                f"data folder {path} has files but no {META}: it is not duemq's. Choose an empty folder with --data."
            )
        lock = take_lock(path)
        try:
            _refuse_backup(path)
            _close_to_others(path)
            if not meta.exists():
                own = ClusterIdentity(secrets.token_hex(8), shards or 1, secrets.token_bytes(32), prefix, {})
                _make(path, identity or own)
            info = read_info(path)
            if identity is not None:
                _refuse_other_cluster(info, identity)
            elif shards is not None and shards != info.shards:
                raise FolderRefused(
                    f"data folder {path} has {info.shards} shards, the configuration says {shards}: "
                    f"a folder keeps its number. Set shards = {info.shards}, or start with an empty folder."
                )
            _tidy(path)
            return Folder(info, lock)
        except BaseException:
            os.close(lock)
            raise

    async def keep_topic_ids(self, ids: Mapping[str, str], before: Mapping[str, str] | None) -> Mapping[str, str]:
        """See `KeepTopicIds`."""
        self.info = replace(self.info, topic_ids=ids)
        _write_meta(self.info.path, self.info)
        return ids

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def read_info(path: Path) -> FolderInfo:
    """Read the metadata of a folder without locking it. Raises FolderRefused."""
    try:
        meta = orjson.loads((path / META).read_bytes())
        known = meta["format"] == "duemq" and isinstance(meta["version"], int)
    except FileNotFoundError as error:
        raise FolderRefused(f"{path} is not a data folder of duemq: it has no {META}") from error
    except PermissionError as error:
        raise FolderRefused(f"{path / META}: {error.strerror}: run this as the user of the server") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderRefused(f"{path / META} cannot be read: restore it from a backup") from error
    if not known:
        raise FolderRefused(f"{path} is a folder of another program; choose another one with --data")
    if meta["version"] not in (VERSION, WITH_PREFIX):
        advice = "use a newer duemq" if meta["version"] > WITH_PREFIX else "see CHANGELOG.md for how to convert it"
        raise FolderRefused(
            f"data folder {path} has format {meta['version']}, this duemq reads up to format {WITH_PREFIX}: {advice}"
        )
    shards, cluster = meta.get("shards"), meta.get("cluster")
    if not isinstance(shards, int) or shards < 1 or not isinstance(cluster, str):
        raise FolderRefused(f"{path / META} names no shards or no cluster: restore it from a backup")
    try:
        secret = (path / SECRET).read_bytes()
    except FileNotFoundError as error:
        raise FolderRefused(f"{path / SECRET} is missing: without it no id can be checked; restore it") from error
    except OSError as error:
        raise FolderRefused(f"{path / SECRET}: {error.strerror}: run this as the user of the server") from error
    return FolderInfo(cluster, shards, secret, meta.get("prefix", OWN), meta.get("topics"), path=path)


def log_id_of(path: Path) -> str:
    """The id of the existing log at this path. It differs from all other ids, changes with a restore, and is created by
    the first call. While the id is the same, each offset has the same record. Raises DiskFull or StoreFailed.
    """
    file = path / LOG_ID
    with translate_errors(path):
        if not file.exists():
            write_durably(file, secrets.token_hex(8).encode())
        return file.read_text()


def _refuse_backup(path: Path) -> None:
    if (path / BACKUP).exists():
        raise FolderRefused(
            f"{path} is a backup and must not change: restore it with `duemq restore {path} --data DIR`"
        )
    if (path / RESTORE).exists():
        raise FolderRefused(
            f"{path} is not complete: a restore was interrupted. Run `duemq restore` again, or empty the folder."
        )


def take_lock(path: Path) -> int:
    """Lock a folder until the returned descriptor is closed. Raises FolderRefused if another process has locked it, or
    if it cannot be locked."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_use(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise FolderRefused(
            f"data folder {path} is in use by process {holder or 'unknown'}: "
            "stop it, or choose another folder with --data"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _cannot_use(path: Path, error: OSError) -> FolderRefused:
    whose = "run this as its owner, or " if isinstance(error, PermissionError) else ""
    return FolderRefused(f"data folder {path}: {error.strerror}; {whose}choose another one with --data")


def _close_to_others(path: Path) -> None:
    """Restrict the folder to its owner if everyone has rights to it. If only its group has rights, nothing changes,
    because these were granted on purpose.

    A folder with another owner, such as a Kubernetes volume, is unchanged: the files created in it are private anyway.
    """
    status = path.stat()
    if status.st_mode & 0o007 and status.st_uid == os.geteuid():
        with suppress(OSError):  # some file systems do not support modes
            path.chmod(0o700)


def _make(path: Path, identity: ClusterIdentity) -> None:
    """Write the secret first and `duemq.json` last: a folder with `duemq.json` is complete."""
    try:
        write_durably(path / SECRET, identity.secret)
    except OSError as error:
        raise DiskFull(f"data folder {path}: {error.strerror}") from error
    _write_meta(path, identity)


def _write_meta(path: Path, identity: ClusterIdentity) -> None:
    meta: dict[str, object] = {
        "format": "duemq", "version": VERSION, "shards": identity.shards, "cluster": identity.cluster,
    }  # fmt: skip
    if identity.prefix != OWN:
        meta |= {"version": WITH_PREFIX, "prefix": identity.prefix}
    if identity.topic_ids is not None:
        meta["topics"] = dict(identity.topic_ids)
    try:
        write_durably(path / META, orjson.dumps(meta, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise DiskFull(f"data folder {path}: {error.strerror}") from error


def _refuse_other_cluster(info: FolderInfo, identity: ClusterIdentity) -> None:
    if info.cluster != identity.cluster:
        raise FolderRefused(
            f"data folder {info.path} belongs to cluster {info.cluster}, this node should join cluster "
            f"{identity.cluster}: choose an empty folder with --data, or name the ZooKeeper of its own cluster"
        )
    if info.shards != identity.shards:
        raise FolderRefused(
            f"data folder {info.path} has {info.shards} shards, its cluster has {identity.shards}: "
            "start with an empty folder, and the node copies its data from its peers"
        )
    if not secrets.compare_digest(info.secret, identity.secret):
        raise FolderRefused(
            f"{info.path / SECRET} is not the secret of cluster {info.cluster}: ids of one would be unknown to the "
            "other. Start with an empty folder, and the node copies its data from its peers."
        )


def _tidy(path: Path) -> None:
    with translate_errors(path):
        if (path / SNAPSHOTS).exists():
            shutil.rmtree(path / SNAPSHOTS)
    finish_replacements(path / "shards")


def disk_bytes(path: Path) -> int:
    """Bytes that all files below a folder take on disk. Files that vanish during the count are left out."""
    total = 0
    inodes: set[int] = set()  # of files that a snapshot shares with its store, so that each is counted once
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                stat = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:  # RocksDB removes files during the count
                continue
            if stat.st_nlink > 1:
                if stat.st_ino in inodes:
                    continue
                inodes.add(stat.st_ino)
            total += stat.st_blocks * _BLOCK_BYTES
    return total
