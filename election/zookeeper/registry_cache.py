"""A copy of some paths in ZooKeeper, which watches keep current.

A read also sets the watch for the next change, so no change between the two is missed. Answers to reads and writes
arrive in the order of the calls, and each is applied at once. So a read never hides a later write by this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from duemq.background.loop import Loop
from duemq.election.zookeeper.session import SessionState, Znode, ZooKeeperSession
from duemq.model.errors import Unavailable

_RECHECK_S = 5.0
_RETRY_S = 0.5  # the longest pause


class RegistryCache:
    """`folders`: paths whose children are copied. `on_change` is called after each change of the copy.

    The session's owner passes the session's states and the touched paths to this object, and runs `run`.
    """

    def __init__(self, session: ZooKeeperSession, folders: Sequence[str], on_change: Callable[[], None]) -> None:
        self.current = asyncio.Event()  # set once everything was read since the last connection
        self._session, self._on_change = session, on_change
        self._folders: dict[str, dict[str, Znode]] = {folder: {} for folder in folders}
        self._touched_paths: set[str] = set()
        self._connections = 0
        # Quiet, because the session logs that ZooKeeper is out of reach. Pauses are short, because no shard is claimed
        # until this copy is current.
        self._loop = Loop("zookeeper mirror", self._turn, ends_on=(Exception,), longest_s=_RETRY_S, level=logging.DEBUG)

    def folder(self, path: str) -> Mapping[str, Znode]:
        """The nodes directly under a path, by name."""
        return self._folders[path]

    def touch(self, path: str) -> None:
        """Read a path again, because it may have changed."""
        self._touched_paths.add(path)
        self._loop.wake()

    def touch_all(self) -> None:
        self._touched_paths |= self._all_paths()
        self._loop.wake()

    def _all_paths(self) -> set[str]:
        return {path for folder, nodes in self._folders.items() for path in (folder, *(f"{folder}/{n}" for n in nodes))}

    def put(self, path: str, znode: Znode | None) -> None:
        """Store the result of a read, or of this process's own write. None: the node was deleted."""
        folder, _, name = path.rpartition("/")
        if znode is None:
            self._folders[folder].pop(name, None)
        else:
            self._folders[folder][name] = znode
        self._on_change()

    def on_state(self, state: SessionState) -> None:
        self._connections += 1
        self.current.clear()
        if state is SessionState.CONNECTED:
            self.touch_all()
        elif state is SessionState.LOST:
            for nodes in self._folders.values():
                nodes.clear()
        self._on_change()

    async def run(self) -> None:
        """Keep the copy current until cancelled. Raises BadConfig."""
        await self._loop.run()

    async def _turn(self) -> float:
        # Watches report every change. Reading everything from time to time protects against unknown faults.
        connections, paths = self._connections, self._touched_paths or self._all_paths()
        self._touched_paths = set()
        outcomes = await asyncio.gather(*(self._read(path) for path in paths), return_exceptions=True)
        if failures := [outcome for outcome in outcomes if outcome is not None]:
            self._touched_paths |= paths
            raise next((error for error in failures if not isinstance(error, Unavailable)), failures[0])
        if not self._touched_paths and connections == self._connections:
            if self._session.state is SessionState.CONNECTED and not self.current.is_set():
                self.current.set()
                self._on_change()
        return _RECHECK_S

    async def _read(self, path: str) -> None:
        if path not in self._folders:
            connections = self._connections
            znode = await self._session.read(path)
            if connections == self._connections:
                self.put(path, znode)
            return
        names = set(await self._session.children(path))
        nodes = self._folders[path]
        for name in names - nodes.keys():
            self.touch(f"{path}/{name}")
        for name in nodes.keys() - names:
            self.put(f"{path}/{name}", None)
