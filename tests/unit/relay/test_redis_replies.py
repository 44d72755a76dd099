"""What each refusal of a Redis becomes: a server that answers one line to all that matters, on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duemq.relay.base import Result
from tests.support.outlets.redis_site import redis_outlet
from tests.support.outlets.site import out_message

pytestmark = pytest.mark.anyio

_ASIDE = (b"CLIENT", b"HELLO", b"SELECT")
REFUSALS = [
    ("MOVED 866 127.0.0.1:1", Result.AWAY),
    ("ASK 866 127.0.0.1:1", Result.AWAY),
    ("TRYAGAIN Multiple keys request during rehashing of slot", Result.AWAY),
    ("CLUSTERDOWN The cluster is down", Result.AWAY),
    ("CLUSTERDOWN Hash slot not served", Result.AWAY),
    ("LOADING Redis is loading the dataset in memory", Result.AWAY),
    ("READONLY You can't write against a read only replica.", Result.AWAY),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Result.AWAY),
    ("NOAUTH Authentication required.", Result.AWAY),
    ("NOPERM this user has no permissions to run the 'evalsha' command", Result.AWAY),
    ("NOPERM User relay has no permissions to access the 'orders' key", Result.AWAY),
    ("MISCONF Errors writing to the AOF file: No space left on device", Result.AWAY),
    ("NOREPLICAS Not enough good replicas to write.", Result.AWAY),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Result.AWAY),
    ("OOM command not allowed when used memory > 'maxmemory'.", Result.AWAY),
    ("FULL the list has 10 elements", Result.FAILED),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", Result.FAILED),
    ("CROSSSLOT Keys in request don't hash to the same slot", Result.FAILED),
    ("ERR unknown command 'EVALSHA', with args beginning with: 'x'", Result.AWAY),
    ("ERR Unknown Redis command called from script script: 1", Result.AWAY),
    ("ERR value is not an integer or out of range", Result.FAILED),
]


@asynccontextmanager
async def refusing(line: str) -> AsyncIterator[str]:
    """The URL of a server that says this to each command, but to what a client begins with."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            writer.write(b"+OK\r\n" if words[0] in _ASIDE else b"-%b\r\n" % line.encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(("line", "result"), REFUSALS)
async def test_a_refusal_has_the_word_of_the_server(line: str, result: Result) -> None:
    async with refusing(line) as url:
        outlet = redis_outlet(url)
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(3)))
        await outlet.close()
    assert {(reply.result, reply.status) for reply in replies} == {(result, line.split()[0])}
    assert {reply.overloaded for reply in replies} == {line.startswith("FULL")}


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("NOPERM this user has no permissions to access one of the keys used as arguments", Result.FAILED),
        ("NOPERM No permissions to access a key", Result.FAILED),
        ("NOPERM User relay has no permissions to access the 'other' key", Result.FAILED),
        ("NOPERM User relay has no permissions to run the 'evalsha' command", Result.AWAY),
        ("ERR The user executing the script can't run this command or subcommand script: 1", Result.AWAY),
        ("ERR The user executing the script can't access at least one of the keys", Result.FAILED),
        ("OOM command not allowed when used memory > 'maxmemory'.", Result.AWAY),
    ],
)
async def test_a_name_that_the_key_made_is_refused_for_its_message_alone(line: str, result: Result) -> None:
    async with refusing(line) as url:
        outlet = redis_outlet(url, name="{{ key }}")
        reply = await outlet.send(out_message(1, key=b"other"))
        await outlet.close()
    assert reply.result is result
