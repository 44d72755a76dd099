"""A store in Redis or Valkey, for all processes in a group. It needs the extra `duemq[redis]`.

Each key is a hash, which scripts change atomically, and which the server removes when it expires. The store is as
durable as the server: with `appendfsync everysec`, a crash can lose the last second, and a replica that takes over can
be behind. At-most-once work needs `appendfsync always` and no automatic failover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from duemq.client.idempotency.base import Begun, Done, Fresh, Running
from duemq.client.idempotency.states import in_doubt
from duemq.model.errors import BadConfig, CorruptStore, Unavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

PREFIX: Final = b"duemq:once:"
START_S: Final = 30.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_CONNECTIONS = 32
_CALL_S = 10.0  # in total, including the wait for a free connection
_SOCKET_S = 5.0  # for connecting, and for each answer; by default, redis-py before version 8 waits forever

_ONE_KEY = ("WRONGTYPE", "attempt to ")  # prefixes of the errors from Redis and Lua if a key is not such a hash

# These scripts implement the table in `states`. A hash that has expired on the caller's clock counts as absent.
_BEGIN = """
local owner, now, lease, keep, once = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local over = ARGV[6]
local row = redis.call('HMGET', KEYS[1], 'owner', 'since', 'until', 'expires', 'result')
if row[1] and now < tonumber(row[4]) then
  if row[5] then return {'done', row[5]} end
  if row[1] ~= owner and row[1] ~= over then
    if now < tonumber(row[3]) then return {'running', row[1], row[2], row[3]} end
    if once == '1' then return {'in doubt', row[1], row[2]} end
  end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', owner, 'since', ARGV[2],
  'until', string.format('%.0f', now + lease), 'expires', string.format('%.0f', now + lease + keep))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', lease + keep))
return {'fresh'}
"""
_FINISH = """
local owner, result, now, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local row = redis.call('HMGET', KEYS[1], 'owner', 'expires', 'result')
if row[1] ~= owner or now >= tonumber(row[2]) then return 0 end
if row[3] then return 1 end
redis.call('HSET', KEYS[1], 'result', result, 'expires', string.format('%.0f', now + keep))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
"""
_RELEASE = """
local row = redis.call('HMGET', KEYS[1], 'owner', 'result')
if row[1] ~= ARGV[1] or row[2] then return 0 end
redis.call('DEL', KEYS[1])
return 1
"""


class RedisStore:
    """Uses the caller's client, which stays open, or one from `open`. All keys begin with `prefix`."""

    shared = True

    def __init__(self, client: Redis, prefix: bytes = PREFIX) -> None:
        self._client, self._prefix, self._own = client, prefix, False
        self._calls, self._closed = set[asyncio.Timeout](), False
        self._begin, self._finish, self._release = (
            client.register_script(script) for script in (_BEGIN, _FINISH, _RELEASE)
        )

    @classmethod
    async def open(cls, url: str, prefix: bytes = PREFIX, start_s: float = START_S) -> RedisStore:
        """Open a store at a URL such as `redis://HOST:PORT/DB`. Raises BadConfig (the package is missing) or
        Unavailable.

        If the server is unreachable or starting, it is tried again for `start_s`, so that a consumer may start before
        it. A call fails if no answer comes within 5 s, or as set by `?socket_timeout=` and `?socket_connect_timeout=`
        (s) in the URL.
        """
        store = cls(_from_url(url), prefix)
        store._own = True
        clock = asyncio.get_running_loop().time
        until, pause_s = clock() + start_s, _FIRST_PAUSE_S
        try:
            while True:
                try:
                    async with store._call():
                        await store._client.ping()
                    return store
                except Unavailable as error:
                    if clock() + pause_s > until:
                        raise
                    log.warning("the store of idempotency keys is unreachable, retrying: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        except BaseException:
            await store.close()
            raise

    async def begin(
        self,
        key: bytes,
        owner: str,
        now_ms: int,
        lease_ms: int,
        keep_ms: int,
        at_most_once: bool = False,
        over: str = "",
    ) -> Begun:
        arguments: list[str | int] = [owner, now_ms, lease_ms, keep_ms, int(at_most_once), over]
        async with self._call():
            answer = await self._begin(keys=[self._prefix + key], args=arguments)
        match [_bytes(each) for each in answer]:
            case [b"fresh"]:
                return Fresh()
            case [b"done", result]:
                return Done(result)
            case [b"running", holder, since, until]:
                return Running(holder.decode(), int(since), int(until))
            case [b"in doubt", holder, since]:
                raise in_doubt(key, holder.decode(), int(since))
        raise AssertionError(f"no answer of the script: {answer!r}")

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        async with self._call():
            return bool(await self._finish(keys=[self._prefix + key], args=[owner, result, now_ms, keep_ms]))

    async def release(self, key: bytes, owner: str) -> bool:
        async with self._call():
            return bool(await self._release(keys=[self._prefix + key], args=[owner]))

    async def expire(self, now_ms: int) -> int:
        """Does nothing and returns 0: the server removes expired keys, by its own clock."""
        return 0

    async def close(self) -> None:
        """Close the store. Pending and later calls raise Unavailable."""
        self._closed = True
        for call in self._calls:
            if not call.expired():
                call.reschedule(asyncio.get_running_loop().time())
        if self._own:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CALL_S):
                    await self._client.aclose()

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Limits the time of a call, ends the call on close, and translates errors. Raises Unavailable or
        CorruptStore."""
        if self._closed:
            raise Unavailable("the store of idempotency keys is closed")
        with _translate_errors():
            async with asyncio.timeout(_CALL_S) as call:
                self._calls.add(call)
                try:
                    yield
                finally:
                    self._calls.discard(call)


def _from_url(url: str) -> Redis:
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
    except ImportError as error:
        raise BadConfig("the package redis is missing: pip install 'duemq[redis]'") from error
    # With all connections in use, this pool waits for a free one; the default pool would raise an error. Settings in
    # the URL take precedence.
    pool = BlockingConnectionPool.from_url(
        url, max_connections=_CONNECTIONS, timeout=_CALL_S, socket_timeout=_SOCKET_S, socket_connect_timeout=_SOCKET_S
    )
    return Redis.from_pool(pool)


@contextmanager
def _translate_errors() -> Iterator[None]:
    from redis.exceptions import RedisError, ResponseError

    try:
        yield
    except (RedisError, OSError) as error:
        if isinstance(error, ResponseError) and any(sign in str(error) for sign in _ONE_KEY):
            raise CorruptStore(f"Redis has something else under the key of that work: {error}") from error
        raise Unavailable(f"Redis cannot say whether the work may be done: {error!r}") from error


def _bytes(value: Any) -> bytes:
    """An answer as bytes. The caller's client may decode answers to str. Results are JSON, so encoding them again
    restores the bytes."""
    return value.encode() if isinstance(value, str) else bytes(value)
