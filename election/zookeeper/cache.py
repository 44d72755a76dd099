"""A copy of some folders of ZooKeeper, kept current by watches.

A read sets the watch that tells of the next change, so nothing is missed between the two. Answers come in the order of
the calls, reads and writes alike, and each is put in at once: a read never hides a later write of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from duemq.election.zookeeper.session import Session, SessionState, Znode
from duemq.model.errors import Unavailable

_RECHECK_S = 5.0
_RETRY_S = 0.1


class Mirror:
    """`folders`: paths whose children are copied. `on_change` is called after each change of the copy.

    Whoever owns the session tells it of states and touched paths, and runs `run`.
    """

    def __init__(self, session: Session, folders: Sequence[str], on_change: Callable[[], None]) -> None:
        self.current = asyncio.Event()  # set while the copy follows: everything was read since the last connection
        self._session, self._on_change = session, on_change
        self._folders: dict[str, dict[str, Znode]] = {folder: {} for folder in folders}
        self._touched_paths: set[str] = set()
        self._wake = asyncio.Event()
        self._connections = 0

    def folder(self, path: str) -> Mapping[str, Znode]:
        """The nodes in it, by name."""
        return self._folders[path]

    def touch(self, path: str) -> None:
        """Read a path again that may have changed."""
        self._touched_paths.add(path)
        self._wake.set()

    def touch_all(self) -> None:
        for folder, nodes in self._folders.items():
            self._touched_paths |= {folder, *(f"{folder}/{name}" for name in nodes)}
        self._wake.set()

    def put(self, path: str, znode: Znode | None) -> None:
        """What a write of our own, or a read, brought. None: it is gone."""
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
        self.touch_all()
        while True:
            try:
                async with asyncio.timeout(_RECHECK_S):
                    await self._wake.wait()
            except TimeoutError:
                self.touch_all()  # watches tell of everything; this is for the fault nobody thought of
            self._wake.clear()
            connections, paths, self._touched_paths = self._connections, self._touched_paths, set()
            outcomes = await asyncio.gather(*(self._read(path) for path in paths), return_exceptions=True)
            failures = [outcome for outcome in outcomes if outcome is not None]
            for error in failures:
                if not isinstance(error, Unavailable):
                    raise error
            if failures:
                self._touched_paths |= paths
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
            elif not self._touched_paths and connections == self._connections:
                if self._session.state is SessionState.CONNECTED and not self.current.is_set():
                    self.current.set()
                    self._on_change()

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
