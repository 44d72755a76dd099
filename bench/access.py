"""`access`: measures the cost of authenticating one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.requests import Request

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.topics.internal_topics import create_logs
from duemq.proxy.access import Access
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.login.tokens import Issuer

_ISSUER = "https://login.example.com"
_BLOCK = 2_000  # requests between two clock readings


class Cost(NamedTuple):
    """The cost of one way to authenticate: µs per request in the fastest, the median and the slowest block."""

    name: str
    fastest_us: float
    median_us: float
    slowest_us: float


def access(blocks: int) -> list[Cost]:
    """Measure `blocks` blocks of 2,000 requests for each way; for a token that is new, blocks of 50 requests."""
    return asyncio.run(_measure(blocks))


async def _measure(blocks: int) -> list[Cost]:
    bus = MemoryBus(MemoryLog(_now))
    await create_logs(bus, 1)
    admin, issuer = Administration(lambda: bus, _now), Issuer(LoginSettings(issuer=_ISSUER, audience="duemq"))
    token = _token(issuer)
    access = Access((), _now, admin, issuer)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(admin.run(), name="administration")
        await admin.log.ready.wait()
        keys = [(await admin.keys.make({"name": f"key {n}", "role": "operator"}, "bench"))["key"] for n in range(200)]
        by_key = _request(keys[0])
        by_token = _request(token)
        credential = access.credential(keys[0].encode())
        assert credential is not None
        cookie, _ = await access.begin_session(credential)
        session = _request("", cookie=cookie)
        await access.token_grant(by_token)

        def first_time() -> None:
            access._cached.clear()
            access.grant(by_key)

        def token_first_time() -> None:
            access._cached.clear()
            _done(access.token_grant(by_token))

        costs = [
            _cost("a key", lambda: access.grant(by_key), blocks, _BLOCK),
            _cost("a key, the first time", first_time, blocks, _BLOCK),
            _cost("a token", lambda: access.grant(by_token), blocks, _BLOCK),
            _cost("a token, the first time", token_first_time, blocks, 50),
            _cost("a session", lambda: access.grant(session), blocks, _BLOCK),
        ]
        running.cancel()
    return costs


def _cost(name: str, call: Callable[[], Any], blocks: int, count: int) -> Cost:
    block_us = []
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(count):
            call()
        block_us.append((time.perf_counter() - start) / count * 1e6)
    block_us.sort()
    return Cost(name, block_us[0], block_us[len(block_us) // 2], block_us[-1])


def _request(key: str, cookie: str = "") -> Request:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    headers += [(b"cookie", f"duemq_session={cookie}".encode())] if cookie else []
    path = "/console/" if cookie else "/v1/messages"
    return Request({"type": "http", "method": "POST", "path": path, "headers": headers, "scheme": "http"})


def _token(issuer: Issuer) -> str:
    """A token from an issuer whose key is known."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer.learn_keys([ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "e1"}])
    issuer._asked_at = float("inf")
    claims = {"iss": _ISSUER, "aud": "duemq", "sub": "u1", "exp": _now() // 1000 + 3600, "roles": ["duemq-operator"]}
    return jwt.encode(claims, key, "ES256", headers={"kid": "e1"})


def _done(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


def _now() -> int:
    return time.time_ns() // 1_000_000
