"""The socket in a data folder through which commands on the same machine reach the folder's server.

    {"backup": 1}      answered {"path": "snapshots/backup-..."}: a complete copy, below the data folder. It is
                       removed when the command closes the connection or ends, so a killed command leaves no files
    {"recover": 7}     answered {"recovering": 7}: see `Node.recover`
    {"make_key": {}}   answered with the new API key, like POST /v1/keys with these fields
    anything refused   answered {"refused": "..."}, with the reason and the `code` of the API

Access to the folder is enough: neither a key nor an address is needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import orjson

from duemq.delay.threads import in_thread
from duemq.model.errors import DuemqError, Rejected, Unavailable
from duemq.storage.data_folder import SNAPSHOTS

log = logging.getLogger(__name__)

SOCKET: Final = "control.sock"
_PLAIN_BYTES: Final = 100  # the longest address used as it is; the kernel's limit is a few bytes higher
_ASK_S: Final = 10.0


class Control:
    """The server's side. `data`: the data folder, locked by this process. `freeze` links all of a node's data into a
    new folder; `recover` makes this node's replica of a shard the truth; `make_key` creates an API key."""

    def __init__(
        self,
        data: Path,
        freeze: Callable[[Path], Awaitable[None]],
        recover: Callable[[int], None],
        make_key: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> None:
        self._data, self._freeze, self._recover, self._make_key = data, freeze, recover, make_key
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._busy = False

    async def __aenter__(self) -> Self:
        path = self._data / SOCKET
        try:
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            try:
                with _address(self._data) as address:
                    listener.bind(address)
                path.chmod(0o600)
                self._server = await asyncio.start_unix_server(self._on_visit, sock=listener)
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            # Some file systems do not support sockets. Everything else works without one.
            log.warning(
                "control: %s: backup and recovery are not possible while this runs (%s)", path, error,
                extra={"action": "control"},
            )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            (self._data / SOCKET).unlink(missing_ok=True)
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _on_visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.create_task(self._visit(reader, writer), name="control")
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ASK_S):
                request = orjson.loads(await reader.readline())
            match request:
                case {"backup": 1}:
                    await self._back_up(reader, writer)
                case {"recover": int(shard)}:
                    self._recover(shard)
                    writer.write(orjson.dumps({"recovering": shard}) + b"\n")
                case {"make_key": dict(fields)}:
                    writer.write(orjson.dumps(await self._make_key(fields)) + b"\n")
                case _:
                    raise Unavailable(f"this server does not know {request!r}: use the duemq of its version")
        except DuemqError as error:
            code = {"code": error.code} if isinstance(error, Rejected) else {}
            writer.write(orjson.dumps({"refused": str(error)} | code) + b"\n")
        except (OSError, TimeoutError, ValueError) as error:
            log.warning("control: the client has gone: %s", error, extra={"action": "control"})
        except Exception:
            log.exception("control: failed", extra={"action": "control"})
            writer.write(orjson.dumps({"refused": "the server failed; see its log"}) + b"\n")
        finally:
            writer.close()

    async def _back_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._busy:
            raise Unavailable("another backup is being made of it")
        name = f"{SNAPSHOTS}/backup-{secrets.token_hex(4)}"
        self._busy = True
        try:
            await self._freeze(self._data / name)
            log.info("backup begins, from %s", name, extra={"action": "backup"})
            writer.write(orjson.dumps({"path": name}) + b"\n")
            await reader.read()  # waits until the client closes the connection
            log.info("backup ends", extra={"action": "backup"})
        finally:
            # Leftover files are removed at the next start.
            await in_thread(shutil.rmtree, self._data / name, ignore_errors=True)
            self._busy = False


@contextmanager
def server_snapshot(data: Path) -> Iterator[Path | None]:
    """All data of the server on this folder, in a folder that exists during the block; None if no server runs.

    Raises Unavailable if the server cannot provide it.
    """
    with socket.socket(socket.AF_UNIX) as client:
        if not _connect(data, client):
            yield None
            return
        path = data / str(_ask(data, client, {"backup": 1})["path"])
        try:
            yield path
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)
                client.recv(1)  # waits for the server to remove the copy, so that the next backup can begin


def ask_to_recover(data: Path, shard: int) -> None:
    """Order the server on this folder to make its replica of a shard the truth. Raises Unavailable if it refuses."""
    with socket.socket(socket.AF_UNIX) as client:
        if not _connect(data, client):
            raise Unavailable(f"no server runs on {data}: start the node whose replica shall be the truth")
        _ask(data, client, {"recover": shard})


def ask_for_key(data: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Have the server on this folder create an API key. Raises Rejected `unconfirmed`, and Unavailable if it
    refuses."""
    with socket.socket(socket.AF_UNIX) as client:
        if not _connect(data, client):
            raise Unavailable(f"no server runs on {data}: start it first, or name another one with --url")
        return _ask(data, client, {"make_key": fields})


def _connect(data: Path, client: socket.socket) -> bool:
    """Connect to the server. False if no server runs on the folder. Raises Unavailable."""
    try:
        with _address(data) as address:
            client.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError as error:
        raise Unavailable(f"{data / SOCKET}: {error.strerror}: run it as the user of the server") from error
    return True


def _ask(data: Path, client: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    answer = b""
    with suppress(OSError):
        client.sendall(orjson.dumps(request) + b"\n")
        answer = client.makefile("rb").readline()
    try:
        document: dict[str, Any] = orjson.loads(answer)
    except ValueError as error:
        raise Unavailable(f"the server on {data} has ended, or is about to: try again") from error
    if document.get("code") == "unconfirmed":
        raise Rejected(document["code"], document["refused"])
    if "refused" in document:
        raise Unavailable(f"the server on {data} refuses: {document['refused']}")
    return document


@contextmanager
def _address(data: Path) -> Iterator[str]:
    """The socket's address, short even if the folder's path is long."""
    plain = str(data / SOCKET)
    if len(os.fsencode(plain)) <= _PLAIN_BYTES:
        yield plain
        return
    folder = os.open(data, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
