"""A ZooKeeper session for asyncio. kazoo runs in its own threads, and only this file uses it.

Every write requires a certain version, or that the node does not exist yet. If the answer to a write is lost, the
server may apply the write later, or never. The caller can then read again and retry: the lost write cannot undo a
change that was made in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.model.errors import BadConfig, Fatal, Unavailable

log = logging.getLogger(__name__)

_CLOSE_S = 3.0


class SessionState(StrEnum):
    """The states of a session, named as in kazoo."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection; the session may still exist
    LOST = "lost"  # the session ended, and its ephemeral nodes with it


@dataclass(frozen=True, slots=True)
class Znode:
    """`born`: the id of the transaction that created the node; no two nodes have the same one. `session`: the session
    of an ephemeral node, otherwise 0."""

    data: bytes
    version: int
    born: int
    session: int


class _Result(Protocol):
    value: Any
    exception: BaseException

    def successful(self) -> bool: ...


class ZooKeeperSession:
    """`on_state` and `on_touched` are called in the event loop. `on_touched` gets the path of a node that changed, or
    whose children changed.

    A session is opened only once. Calls raise Unavailable if there is no session, BadConfig if access is denied.
    Without a connection they wait.
    """

    def __init__(
        self, options: ZooKeeperOptions, on_state: Callable[[SessionState], None], on_touched: Callable[[str], None]
    ) -> None:
        self.state = SessionState.LOST
        self._options, self._tell_state, self._tell_touched = options, on_state, on_touched
        self._connected = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Without these arguments, kazoo gives up permanently if there is no quorum for a while.
        retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
        self._client = KazooClient(
            hosts=options.hosts,
            timeout=options.session_timeout_s,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(**retry),
            default_acl=CREATOR_ALL_ACL if options.acl == "creator" else OPEN_ACL_UNSAFE,
            auth_data=[("digest", f"{options.user}:{options.password}")] if options.user else None,
            use_ssl=options.tls,
            ca=options.ca_file or None,
            certfile=options.cert_file or None,
            keyfile=options.key_file or None,
            check_hostname=options.tls and options.verify_host,
        )
        self._client.add_listener(self._on_state)

    @property
    def id(self) -> int | None:
        """The session's id; None without a connection."""
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    async def open(self) -> None:
        """Raises Unavailable if no server answers in time."""
        self._loop = asyncio.get_running_loop()
        self._client.start_async()
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            detail = f"no ZooKeeper answered at {self._options.hosts} within {self._options.connect_timeout_s:g} s"
            if self._options.tls:
                detail += (
                    " by TLS: look whether these are secure ports, whether zookeeper.ca_file signed the servers' "
                    "certificates and these name the hosts, and whether they trust zookeeper.cert_file"
                )
            raise Unavailable(detail) from None

    async def close(self) -> None:
        """End the session, which deletes its ephemeral nodes. Takes a limited time. Idempotent."""
        if self._closing or self._loop is None:
            return
        self._closing = True
        closed = asyncio.Event()

        def close() -> None:
            with suppress(Exception):  # kazoo raises if a connection did not end in time; this is logged below
                self._client.stop()
                self._client.close()
            self._to_loop(closed.set)

        # A daemon thread, because the event loop, when it ends, waits for its own threads, however long they take.
        closer = threading.Thread(target=close, name="zookeeper-close", daemon=True)
        closer.start()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await closed.wait()
            closer.join()
        except TimeoutError:
            log.warning(
                "zookeeper connection did not close in %g s and is left behind", _CLOSE_S, extra={"action": "close"}
            )

    async def read(self, path: str) -> Znode | None:
        """Read a node. If it exists, watch it from now on."""
        try:
            data, stat = await self._call(self._client.get_async, path, self._on_touched)
        except NoNodeError:
            return None
        return _znode(data, stat)

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, which are watched from now on.

        Raises Fatal if the node was deleted: duemq never deletes a node that may have children.
        """
        try:
            names: list[str] = await self._call(self._client.get_children_async, path, self._on_touched)
        except NoNodeError as error:
            raise Fatal(f"{path} was deleted from ZooKeeper: restart every node of this cluster") from error
        return names

    async def create(self, path: str, data: bytes, ephemeral: bool = False) -> Znode | None:
        """Create a node; return None if it exists."""
        try:
            _, stat = await self._call(self._client.create_async, path, data, ephemeral=ephemeral, include_data=True)
        except NodeExistsError:
            return None
        return _znode(data, stat)

    async def write(self, path: str, data: bytes, version: int) -> Znode | None:
        """Write a node; return None if it was deleted or has another version."""
        try:
            return _znode(data, await self._call(self._client.set_async, path, data, version))
        except (BadVersionError, NoNodeError):
            return None

    async def delete(self, path: str, version: int) -> bool:
        """Delete a node; return False if it was deleted already or has another version."""
        try:
            await self._call(self._client.delete_async, path, version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    async def ensure(self, path: str) -> None:
        """Create a node and its parents, if they are missing."""
        await self._call(self._client.ensure_path_async, path)

    async def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call(*args, **kwargs).rawlink(lambda result: self._to_loop(_resolve, answer, result))
        try:
            return await answer
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except (NoAuthError, AuthFailedError) as error:
            raise BadConfig(
                f"ZooKeeper refuses user {self._options.user or 'nobody'} at {args[0]}: check zookeeper.user, "
                "zookeeper.password, zookeeper.acl and who made that path"
            ) from error
        except KazooException as error:
            raise Unavailable(f"ZooKeeper did not do it: {type(error).__name__} {error}") from error

    def _on_state(self, state: str) -> None:
        self._to_loop(self._set_state, SessionState[state])

    def _set_state(self, state: SessionState) -> None:
        if state is self.state or self._closing:
            return
        self.state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
            log.info("zookeeper is connected", extra={"action": "connected", "hosts": self._options.hosts})
        else:
            log.warning("zookeeper session is %s", state, extra={"action": str(state)})
        self._tell_state(state)

    def _on_touched(self, event: Any) -> None:
        if event.path:  # an event without a path is about the session: `_on_state` handles it
            self._to_loop(self._tell_touched, event.path)

    def _to_loop(self, call: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so no task is listening
            self._loop.call_soon_threadsafe(call, *args)


def _resolve(answer: asyncio.Future[Any], result: _Result) -> None:
    if answer.done():
        return
    if result.successful():
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)


def _znode(data: bytes, stat: Any) -> Znode:
    return Znode(data, stat.version, stat.czxid, stat.ephemeralOwner)
