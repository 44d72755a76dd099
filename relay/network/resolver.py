"""Resolves the names of one destination, and connects only to addresses that were checked.

No client resolves names itself: each connects to an address from this module, so an answer that changes between the
check and the connection (DNS rebinding) has no effect. Each look-up runs in a separate thread. The event loop's thread
pool would not do: it is shared by all destinations (with uvloop, only two look-ups run at a time), and look-ups at a
name server that does not answer would fill it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from ipaddress import ip_address
from threading import BoundedSemaphore, Thread
from typing import Final

from duemq.relay.network.address import ForbiddenAddress, Network, NoAddress, check_address

LOOKUP_S: Final = 15.0
"""How long an answer is fresh. After that, the name is resolved again, while the old answer stays in use."""
_STALE_S: Final = 60.0
_AGAIN_S: Final = 1.0  # between look-ups: if a server refuses connections, each message would cause another look-up
_MAX_NAMES: Final = 64  # per destination: a cluster may announce more servers
_MAX_THREADS: Final = 256  # per process: for 200 destinations, and pending look-ups for destinations that have ended

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Resolves a host name to addresses. Raises OSError."""


class LookupFailed(NoAddress):
    """The name has no address. The error text contains the resolver's error."""

    status = "dns_error"


class _Name:
    """A name and the last answer for it. `addresses`: only those that are allowed."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.failed: set[str] = set()
        self.looked_up = self.good_until = 0.0
        self.look_up: asyncio.Task[None] | None = None

    def usable(self) -> list[str]:
        """The addresses that have not failed. Once all have failed, all are tried again."""
        if self.failed.issuperset(self.addresses):
            self.failed.clear()
        return [address for address in self.addresses if address not in self.failed]


class Resolver:
    """The resolver for one destination. `allowed`: networks that are allowed although they are not public."""

    def __init__(self, allowed: Sequence[Network], lookup: Lookup | None = None) -> None:
        self._allowed, self._lookup = allowed, lookup or _look_up
        self.names: dict[str, _Name] = {}

    def fresh(self, host: str) -> bool:
        """Whether the last answer for a name is fresh."""
        name = self.names.get(host)
        return name is not None and asyncio.get_running_loop().time() < name.good_until

    async def addresses(self, host: str) -> list[str]:
        """The addresses to connect to, at least one. `host`: a name or an address. Raises NoAddress."""
        name = self.names.get(host)
        if name is None:
            if len(self.names) >= _MAX_NAMES:
                del self.names[next(iter(self.names))]
            name = self.names[host] = _Name()
        now = asyncio.get_running_loop().time()
        if now < name.good_until:
            return name.usable()
        if name.look_up is None or name.look_up.done():
            name.look_up = asyncio.create_task(self._refresh(host, name), name=f"look up {host}")
            # Retrieves the error, so that asyncio does not report it: while an old answer is in use, no caller waits
            # for the task.
            name.look_up.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not (name.addresses and now < name.good_until + _STALE_S):
            await asyncio.shield(name.look_up)
        return name.usable()

    def failed(self, host: str, address: str) -> None:
        """Report that connecting to an address failed: the others are tried next, and the name is resolved again
        soon."""
        if (name := self.names.get(host)) is not None:
            name.failed.add(address)
            name.good_until = min(name.good_until, name.looked_up + _AGAIN_S)

    async def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """Connect to the first address that accepts. `timeout_s` is divided among the addresses. Raises OSError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        async with asyncio.timeout_at(end):
            addresses = await self.addresses(host)
        error: OSError | None = None
        for tried, address in enumerate(addresses):
            try:
                async with asyncio.timeout((end - loop.time()) / (len(addresses) - tried)):
                    return await _connect(address, port)
            except OSError as failure:  # includes TimeoutError
                self.failed(host, address)
                error = failure
        raise error or LookupFailed(f"{host} has no address")

    async def close(self) -> None:
        for name in self.names.values():
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
            name.addresses = []  # addresses from an earlier answer must not be used, either
            name.good_until = 0.0
            raise
        name.looked_up = asyncio.get_running_loop().time()
        name.good_until = name.looked_up + LOOKUP_S

    def _checked(self, host: str, addresses: Sequence[str]) -> list[str]:
        """The addresses that are allowed. Raises NoAddress if none is left."""
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
    """Ask the system's resolver. If the caller is cancelled, the thread continues, but does not keep the process
    alive."""
    threads = _threads
    if not threads.acquire(blocking=False):
        raise OSError(f"{_MAX_THREADS} other names are being looked up")
    answer: Future[Sequence[str]] = Future()
    answer.set_running_or_notify_cancel()  # so that a cancelled caller cannot cancel it: the thread sets its result

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answer.set_result(list(dict.fromkeys(str(info[4][0]) for info in infos)))
        except Exception as error:
            answer.set_exception(error)
        finally:
            threads.release()

    Thread(target=ask, name=f"look up {host}", daemon=True).start()
    return await asyncio.wrap_future(answer)
