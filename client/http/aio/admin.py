"""The client for operators of duemq."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Unpack

from duemq.client.http import operations
from duemq.client.http.aio.client import AsyncClient
from duemq.client.http.aio.message import AsyncMessage
from duemq.client.http.fields import Text, check_arguments
from duemq.client.http.requests import ABSENT, Absent, Delay, Filter
from duemq.client.http.values import Cluster, FileImport


class AsyncAdmin(AsyncClient):
    """A client that also operates duemq: dead letters, jobs, imports, cluster, destinations, API keys and audit trail.

    Its arguments and errors are those of `AsyncClient`. The API key needs the scope that each call requires
    (docs/operate/security.md).
    """

    def dlq(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> AsyncIterator[AsyncMessage]:
        """Iterate over the dead letters that match the filters. `state.reason` says why a message could not be
        delivered."""
        check_arguments("dlq", filters, Filter.__annotations__)
        return self._pages("/v1/dlq", page_size, filters)

    async def redrive(self, message_id: Text, topic: str | None = None) -> AsyncMessage:
        """Take a message out of the dead letters and deliver it again, to its own topic or to the given one.

        Raises `RedrivesExhausted`, `AlreadyPurged`.
        """
        return AsyncMessage(self, await self._run(operations.redrive(message_id, topic)))

    async def purge(self, message_id: Text) -> AsyncMessage:
        """End a dead letter for good: it can no longer be redriven."""
        return AsyncMessage(self, await self._run(operations.purge(message_id)))

    async def begin_job(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Start a bulk job: "redrive", "purge", "cancel", "move", "move-with-expiry" or "deliver-now".

        `fields`: see docs/guides/dead-letters.md. With `dry_run=True` no message is changed, and `total` is the number
        of messages that the job would apply to.
        """
        return await self._run(operations.begin_job({"kind": kind, **fields}))

    async def jobs(self) -> Sequence[dict[str, Any]]:
        """Return the bulk jobs that the server still knows, newest first."""
        return await self._run(operations.jobs())

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return the current state of a bulk job."""
        return await self._run(operations.job(job_id))

    async def pause_job(self, job_id: str) -> dict[str, Any]:
        return await self._run(operations.change_job(job_id, "pause"))

    async def resume_job(self, job_id: str) -> dict[str, Any]:
        return await self._run(operations.change_job(job_id, "resume"))

    async def cancel_job(self, job_id: str) -> dict[str, Any]:
        """End a job. Changes that it has already made remain."""
        return await self._run(operations.change_job(job_id, "cancel"))

    async def dead_letters_in(self, topic: str, *, page_size: int = 1000) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the records in a topic of dead letters, such as `dlq.GROUP`, without their payloads."""
        cursor = None
        while True:
            page = await self._run(operations.dead_letters_in(topic, page_size, cursor))
            for letter in page["letters"]:
                yield letter
            cursor = page["cursor"]
            if cursor is None:
                return

    async def dead_letter_in(self, topic: str, place: str) -> dict[str, Any]:
        """Return the record at a place, `PARTITION:OFFSET`, in a topic of dead letters."""
        return await self._run(operations.dead_letter_in(topic, place))

    async def import_file(self, path: str, *, link: bool = False, **metadata: str | int) -> FileImport:
        """Import a Parquet file of messages. `path`: an absolute path on the server's nodes.

        The command is durable once this returns; `imports` shows when the file is imported. If a file with the same
        content was imported before, the result is a `duplicate`. `metadata`: all of `sha256` (hex), `size`, `window`
        (ms) and `rows`, or none of them: then the server reads the file before it answers. Raises `BadDelayFile` for an
        invalid file, and `Forbidden` for a folder from which the server does not import.
        """
        return await self._run(operations.import_file(path, link, metadata))

    async def import_files(
        self, files: Sequence[Mapping[str, str | int]], *, link: bool = False
    ) -> Sequence[FileImport]:
        """Import files that belong together: either all of the commands are durable once this returns, or none.

        `files`: at most 20,000, each with `path`, `sha256`, `size`, `window` and `rows`. Returns one result per file,
        in order; `imports` shows when the files are imported. The same content is imported only once, however often the
        call is repeated.
        """
        return await self._run(operations.import_files(files, link))

    async def imported_ids(self, import_id: str, first: int = 0, most: int = 10_000) -> Sequence[str]:
        """Return the ids of up to `most` (at most 10,000) messages in an imported file, starting at row `first`.

        Raises `NoIds` once the file's window is due, because the file is removed then.
        """
        return await self._run(operations.imported_ids(import_id, first, most))

    async def import_record(self, import_id: str) -> FileImport:
        """Return the state of an import."""
        return await self._run(operations.import_record(import_id))

    async def imports(self, state: str | None = None, below: str = "") -> Sequence[FileImport]:
        """Return the imports that are not purged. `state`: only those in this state. `below`: only those whose path
        begins with it."""
        return await self._run(operations.imports(state, below))

    async def count_imports(self, state: str, below: str = "") -> int:
        """Count the imports in a state whose path begins with `below`. This is cheap for the state `pending`."""
        return await self._run(operations.count_imports(state, below))

    async def cluster(self) -> Cluster:
        """Return the nodes, and the progress of each shard."""
        return await self._run(operations.cluster())

    async def drain(self, node: str) -> None:
        """Ask a node to release its shards to other nodes, which takes a moment. Raises `UnknownNode`,
        `NotSupported`."""
        await self._run(operations.drain(node))

    async def resume(self, node: str) -> None:
        """Let a drained node become master of shards again."""
        await self._run(operations.resume(node))

    async def destinations(self) -> Sequence[dict[str, Any]]:
        """Return the destinations, sorted by name. They show which credentials are set, but not the credentials
        themselves."""
        return await self._run(operations.destinations())

    async def destination(self, name: str) -> dict[str, Any]:
        """Return one destination. Raises `UnknownDestination`."""
        return await self._run(operations.destination(name))

    async def declare_destination(self, name: str, url: str, **fields: Any) -> dict[str, Any]:
        """Declare a destination. `fields`: as in `POST /v1/destinations`, such as `topics`, `rate` and `credentials`.

        Raises `DestinationExists` if the name is taken, unless `replace=True` is among the fields.
        """
        return await self._run(operations.declare_destination(name, url, fields))

    async def change_destination(self, name: str, **changes: Any) -> dict[str, Any]:
        """Change fields of a destination. The new value of a field replaces the old one completely."""
        return await self._run(operations.change_destination(name, changes))

    async def pause_destination(self, name: str) -> dict[str, Any]:
        return await self._run(operations.operate_destination(name, "pause"))

    async def resume_destination(self, name: str) -> dict[str, Any]:
        """Resume deliveries to a destination that is paused or disabled."""
        return await self._run(operations.operate_destination(name, "resume"))

    async def test_destination(self, name: str) -> dict[str, Any]:
        """Send a test message to a destination. Returns `result` (`accepted` if it succeeded), `status`, `detail` and
        `took_ms`."""
        return await self._run(operations.operate_destination(name, "test"))

    async def remove_destination(self, name: str) -> None:
        """Remove a destination and its credentials. Its topics keep their records."""
        await self._run(operations.remove_destination(name))

    async def keys(self) -> Sequence[dict[str, Any]]:
        """Return the API keys, oldest first, without the secret texts."""
        return await self._run(operations.keys())

    async def create_key(
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
        """Create an API key with `scopes` or a `role`. Its secret text is `key` in the result, and is never shown
        again.

        `topics`: names or patterns of the only topics for which the key is valid. `rate`: messages/s, 0 = no limit. On
        a server that requires no key yet, the first key shuts out callers without a key. So it must be an admin's
        (otherwise `NeedsAdmin` is raised). With `confirm=False`, `Unconfirmed` is raised if there were such callers,
        with the number of their requests.
        """
        return await self._run(operations.create_key(name, scopes, expires_after, role, topics, rate, confirm))

    async def rotate_key(self, key_id: str, overlap: Delay | Absent = ABSENT) -> dict[str, Any]:
        """Give a key, by its id or name, a new secret text. The old text stays valid for `overlap`, by default a
        day."""
        return await self._run(operations.rotate_key(key_id, overlap))

    async def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Revoke a key, by its id or name. It is no longer accepted after at most a second. Raises `UnknownKey`."""
        return await self._run(operations.revoke_key(key_id))

    async def trail(self, limit: int = 100, cursor: str | None = None) -> dict[str, Any]:
        """Return a page of the audit trail: `entries`, newest first, and the `cursor` for the next page."""
        return await self._run(operations.trail(limit, cursor))
