# Made from client/http/aio/admin.py by `make sdk`: change that file.
"""The client for operators of duemq."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from duemq.client.http import operations
from duemq.client.http.blocking.client import Client
from duemq.client.http.blocking.message import Message
from duemq.client.http.fields import Text, check_arguments
from duemq.client.http.requests import ABSENT, Absent, Delay, Filter
from duemq.client.http.values import Cluster, FileImport


class Admin(Client):
    """A client that also operates duemq: dead letters, jobs, imports, cluster, destinations, keys and trail.

    Arguments and errors: as of `Client`. The API key needs the scope of each call (docs/operate/security.md).
    """

    def dlq(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Iterator[Message]:
        """Iterate over the dead letters that match. `state.reason` says why each could not be delivered."""
        check_arguments("dlq", filters, Filter.__annotations__)
        return self._pages("/v1/dlq", page_size, filters)

    def redrive(self, message_id: Text, topic: str | None = None) -> Message:
        """Take a message out of the dead letters and deliver it again, to its own topic or to `topic`.

        Raises `RedrivesExhausted`, `AlreadyPurged`.
        """
        return Message(self, self._run(operations.redrive(message_id, topic)))

    def purge(self, message_id: Text) -> Message:
        """End a dead letter for good: it can no longer be redriven."""
        return Message(self, self._run(operations.purge(message_id)))

    def begin_job(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Start a bulk job: "redrive", "purge", "cancel", "move", "move-with-expiry" or "deliver-now".

        `fields`: see docs/guides/dead-letters.md. With `dry_run=True` no message is changed, and `total` is the number
        of messages that the job would apply to.
        """
        return self._run(operations.begin_job({"kind": kind, **fields}))

    def jobs(self) -> Sequence[dict[str, Any]]:
        """Return the known bulk jobs, newest first."""
        return self._run(operations.jobs())

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the current state of a bulk job."""
        return self._run(operations.job(job_id))

    def pause_job(self, job_id: str) -> dict[str, Any]:
        return self._run(operations.change_job(job_id, "pause"))

    def resume_job(self, job_id: str) -> dict[str, Any]:
        return self._run(operations.change_job(job_id, "resume"))

    def cancel_job(self, job_id: str) -> dict[str, Any]:
        """End a job. Changes it has already made stay."""
        return self._run(operations.change_job(job_id, "cancel"))

    def dead_letters_in(self, topic: str, *, page_size: int = 1000) -> Iterator[dict[str, Any]]:
        """Iterate over the records of a topic of dead letters, such as `dlq.GROUP`, without their payloads."""
        cursor = None
        while True:
            page = self._run(operations.dead_letters_in(topic, page_size, cursor))
            yield from page["letters"]
            cursor = page["cursor"]
            if cursor is None:
                return

    def dead_letter_in(self, topic: str, place: str) -> dict[str, Any]:
        """Return the record at PARTITION:OFFSET of a topic of dead letters."""
        return self._run(operations.dead_letter_in(topic, place))

    def import_file(self, path: str, *, link: bool = False, **metadata: str | int) -> FileImport:
        """Import a Parquet file of messages. `path`: absolute, as the server's nodes see it.

        The command is durable when this returns; `imports` says when the file is imported. The same content again is a
        `duplicate`. `metadata`: all of `sha256` (hex), `size`, `window` (ms) and `rows`; without them
        the server reads the file before it answers. Raises `BadDelayFile` for an invalid file, `Forbidden` for a folder
        that the server does not import from.
        """
        return self._run(operations.import_file(path, link, metadata))

    def import_files(self, files: Sequence[Mapping[str, str | int]], *, link: bool = False) -> Sequence[FileImport]:
        """Import files that belong together: all or none of the commands are durable when this returns.

        At most 20,000, each with `path`, `sha256`, `size`, `window` and `rows`. One answer per file, in order;
        `imports` says when they are imported. The same content is imported once, however often this is repeated.
        """
        return self._run(operations.import_files(files, link))

    def imported_ids(self, import_id: str, first: int = 0, most: int = 10_000) -> Sequence[str]:
        """Return the ids of up to `most` (at most 10,000) messages of an imported file, from row `first` on.

        Raises `NoIds` once their window is due, because the file is removed then.
        """
        return self._run(operations.imported_ids(import_id, first, most))

    def import_record(self, import_id: str) -> FileImport:
        """Return the state of an import."""
        return self._run(operations.import_record(import_id))

    def imports(self, state: str | None = None, below: str = "") -> Sequence[FileImport]:
        """Return all imports that are not purged, or those in one state, whose path begins with `below`."""
        return self._run(operations.imports(state, below))

    def count_imports(self, state: str, below: str = "") -> int:
        """Count the imports in a state whose path begins with `below`. Cheap for `pending`."""
        return self._run(operations.count_imports(state, below))

    def cluster(self) -> Cluster:
        """Return the nodes, and the progress of each shard."""
        return self._run(operations.cluster())

    def drain(self, node: str) -> None:
        """Ask a node to hand over its shards, which it does within moments. Raises `UnknownNode`, `NotSupported`."""
        self._run(operations.drain(node))

    def resume(self, node: str) -> None:
        """Let a drained node take part again."""
        self._run(operations.resume(node))

    def destinations(self) -> Sequence[dict[str, Any]]:
        """Return the destinations, by name. Their credentials are not shown, only which ones are set."""
        return self._run(operations.destinations())

    def destination(self, name: str) -> dict[str, Any]:
        """Return one destination. Raises `UnknownDestination`."""
        return self._run(operations.destination(name))

    def declare_destination(self, name: str, url: str, **fields: Any) -> dict[str, Any]:
        """Declare a destination. `fields`: as in `POST /v1/destinations`, such as `topics`, `rate` and `credentials`.

        Raises `DestinationExists`, unless one of them is `replace=True`.
        """
        return self._run(operations.declare_destination(name, url, fields))

    def change_destination(self, name: str, **changes: Any) -> dict[str, Any]:
        """Change fields of a destination. Each given field replaces the former value completely."""
        return self._run(operations.change_destination(name, changes))

    def pause_destination(self, name: str) -> dict[str, Any]:
        return self._run(operations.operate_destination(name, "pause"))

    def resume_destination(self, name: str) -> dict[str, Any]:
        """Resume deliveries to a destination that is paused or disabled."""
        return self._run(operations.operate_destination(name, "resume"))

    def test_destination(self, name: str) -> dict[str, Any]:
        """Send a test message. Returns `result` (`accepted` if all is well), `status`, `detail`, `took_ms`."""
        return self._run(operations.operate_destination(name, "test"))

    def remove_destination(self, name: str) -> None:
        """Remove a destination and its credentials. Its topics keep their records."""
        self._run(operations.remove_destination(name))

    def keys(self) -> Sequence[dict[str, Any]]:
        """Return the API keys, oldest first, without their texts."""
        return self._run(operations.keys())

    def create_key(
        self,
        name: str,
        scopes: Iterable[str] = (),
        expires_after: Delay | Absent = ABSENT,
        *,
        role: str | None = None,
        topics: Iterable[str] = (),
        rate: int = 0,
        confirm: bool = True,
    ) -> dict[str, Any]:
        """Create an API key, with `scopes` or a `role`. Its text is `key` of the result, and is never shown again.

        `topics`: the only names or patterns that it is for. `rate`: messages/s, 0 = any. The first key of a server that
        requires none shuts out callers without a key: it has to be an admin's (`NeedsAdmin`), and with `confirm=False`
        `Unconfirmed` is raised and says how many there were.
        """
        return self._run(operations.create_key(name, scopes, expires_after, role, topics, rate, confirm))

    def rotate_key(self, key_id: str, overlap: Delay | Absent = ABSENT) -> dict[str, Any]:
        """Give a key, by its id or name, a new text. The old one stays valid for `overlap`, by default a day."""
        return self._run(operations.rotate_key(key_id, overlap))

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Revoke a key, by its id or name: within a second it is no longer accepted. Raises `UnknownKey`."""
        return self._run(operations.revoke_key(key_id))

    def trail(self, limit: int = 100, cursor: str | None = None) -> dict[str, Any]:
        """Return a page of the audit trail: `entries`, newest first, and the `cursor` of the next one."""
        return self._run(operations.trail(limit, cursor))
