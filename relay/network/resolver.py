"""Looks up the names of one destination, and connects to addresses that were checked.

No client looks a name up itself: it connects to an address that stands here, so an answer that changes between the
check and the connection (DNS rebinding) changes nothing. Each look-up has its own thread. The event loop's pool is
shared by all (uvloop runs two look-ups at a time), and a name server that does not answer would fill it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from ipaddress import ip_address
from threading import BoundedSemaphore, Thread
from typing import Final

from duemq.relay.network.addresses import ForbiddenAddress, Network, NoAddress, check_address

LOOKUP_S: Final = 15.0
"""An answer is good for this time. Then the name is resolved again, and the old answer still serves."""
_STALE_S: Final = 60.0
_AGAIN_S: Final = 1.0  # a server that refuses at once must not cost one look-up per message
_MAX_NAMES: Final = 64  # of one destination: a cluster tells of its servers
_MAX_THREADS: Final = 256  # of this process: 200 destinations, and what those that ended still wait for

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its addresses. Raises OSError."""


class LookupFailed(NoAddress):
    """The name has no address; the message says what DNS said."""

    status = "dns_error"


class _Name:
    """A name and its answer. `addresses`: those that are allowed."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.failed: set[str] = set()
        self.looked_up = self.good_until = 0.0
        self.look_up: asyncio.Task[None] | None = None

    def usable(self) -> list[str]:
        """Those that did not fail; all again once each has."""
        if self.failed.issuperset(self.addresses):
            self.failed.clear()
        return [address for address in self.addresses if address not in self.failed]


class Resolver:
    """Of one destination. `allowed`: networks that are not public and may be connected to all the same."""

    def __init__(self, allowed: Sequence[Network], lookup: Lookup | None = None) -> None:
        self._allowed, self._lookup = allowed, lookup or _look_up
        self._names: dict[str, _Name] = {}

    def fresh(self, host: str) -> bool:
        """Whether the addresses need not be looked up again."""
        name = self._names.get(host)
        return name is not None and asyncio.get_running_loop().time() < name.good_until

    async def addresses(self, host: str) -> list[str]:
        """Addresses to connect to, at least one. `host`: a name, or an address. Raises NoAddress."""
        name = self._names.get(host)
        if name is None:
            if len(self._names) >= _MAX_NAMES:
                del self._names[next(iter(self._names))]
            name = self._names[host] = _Name()
        now = asyncio.get_running_loop().time()
        if now < name.good_until:
            return name.usable()
        if name.look_up is None or name.look_up.done():
            name.look_up = asyncio.create_task(self._refresh(host, name), name=f"look up {host}")
            # Its error is for those who wait for it; while an old answer serves there are none.
            name.look_up.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not (name.addresses and now < name.good_until + _STALE_S):
            await asyncio.shield(name.look_up)
        return name.usable()

    def failed(self, host: str, address: str) -> None:
        """It could not be connected to: the others are tried, and the name is looked up soon."""
        if (name := self._names.get(host)) is not None:
            name.failed.add(address)
            name.good_until = min(name.good_until, name.looked_up + _AGAIN_S)

    async def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection to the first address that takes one; each has its share of the time. Raises OSError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        async with asyncio.timeout_at(end):
            addresses = await self.addresses(host)
        error: OSError | None = None
        for tried, address in enumerate(addresses):
            try:
                async with asyncio.timeout((end - loop.time()) / (len(addresses) - tried)):
                    return await _connect(address, port)
            except OSError as failure:  # TimeoutError is one
                self.failed(host, address)
                error = failure
        raise error or LookupFailed(f"{host} has no address")

    async def close(self) -> None:
        for name in self._names.values():
            if name.look_up is not None:
                name.look_up.cancel()
                await asyncio.wait([name.look_up])

    async def _refresh(self, host: str, name: _Name) -> None:
        text = host[1:-1] if host.startswith("[") else host
        try:
            ip_address(text)
            addresses: Sequence[str] = [text]
        except ValueError:
            try:
                addresses = await self._lookup(host)
            except (OSError, UnicodeError) as error:
                raise LookupFailed(f"{host}: {error}") from error
        try:
            name.addresses = self._checked(host, addresses)
        except ForbiddenAddress:
            name.addresses = []  # also those that were good before the name moved
            name.good_until = 0.0
            raise
        name.looked_up = asyncio.get_running_loop().time()
        name.good_until = name.looked_up + LOOKUP_S

    def _checked(self, host: str, addresses: Sequence[str]) -> list[str]:
        """Those that are allowed. Raises NoAddress if none is left."""
        good: list[str] = []
        refused: NoAddress | None = None
        for address in addresses:
            try:
                check_address(address, self._allowed)
                good.append(address)
            except ForbiddenAddress as error:
                refused = refused or error
        if not good:
            raise refused or LookupFailed(f"{host} has no address")
        return good


async def _connect(address: str, port: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection


_threads: Final = BoundedSemaphore(_MAX_THREADS)


async def _look_up(host: str) -> Sequence[str]:
    """As the machine does. The thread outlives a caller that gives up; it keeps no process from ending."""
    if not _threads.acquire(blocking=False):
        raise OSError(f"{_MAX_THREADS} other names are being looked up")
    answer: Future[Sequence[str]] = Future()
    answer.set_running_or_notify_cancel()  # a caller that gives up cancels nothing

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answer.set_result(list(dict.fromkeys(str(info[4][0]) for info in infos)))
        except Exception as error:
            answer.set_exception(error)
        finally:
            _threads.release()

    Thread(target=ask, name=f"look up {host}", daemon=True).start()
    return await asyncio.wrap_future(answer)
