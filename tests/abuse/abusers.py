"""All kinds of abuse, in a process of their own: what they cost must not delay the honest client."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import threading
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from duemq.bench.base.workers import WorkerLink
from tests.abuse.base import FAT_TOPIC, Abuser, Sizes
from tests.abuse.large import EmptyBatches, HugeHeads
from tests.abuse.silent import IdleConnections, SlowHeads
from tests.abuse.topics import NewTopics
from tests.abuse.unread import EventStreams, LongPolls

KINDS: dict[str, type[Abuser]] = {
    "idle": IdleConnections,
    "streams": EventStreams,
    "polls": LongPolls,
    "slow-heads": SlowHeads,
    "huge-heads": HugeHeads,
    "empty-batches": EmptyBatches,
    "topics": NewTopics,
}
Counts = dict[str, dict[str, int]]  # of each kind

_NICE = 10  # abusers have machines of their own; here they must not take the server's
_LOOK_EVERY_S = 0.2
_FAT_MESSAGES, _FAT_BYTES = 40, 256 << 10


async def abuse(link: WorkerLink, url: str, topic: str, sizes: Sizes, kinds: Sequence[str], seed: int) -> Counts:
    """Abuse the server in all of these ways until told to stop. Progress is how many connections and messages there
    were. Raises what a kind failed with: of what the server does to it nothing is a failure."""
    _raise_limit(sizes)
    os.nice(_NICE)
    place = urllib.parse.urlsplit(url)
    host, port = place.hostname or "", place.port or 80
    await asyncio.to_thread(_fill, host, port)
    abusers = [
        (name, KINDS[name](host, port, topic, sizes, seed)) for name in kinds for _ in range(KINDS[name].side_by_side)
    ]
    stop = threading.Event()
    with ThreadPoolExecutor(len(abusers), "abuse") as pool:
        running = [asyncio.wrap_future(pool.submit(each.run, stop)) for _, each in abusers]
        try:
            while not link.stopped.is_set() and not any(each.done() for each in running):
                await asyncio.wait(running, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                link.progress(sum(each.counts["tried"] for _, each in abusers))
        finally:
            stop.set()
            await asyncio.gather(*running)
    counts = {name: Counter[str]() for name in kinds}
    for name, each in abusers:
        counts[name] += each.counts
    return {name: dict(one) for name, one in counts.items()}


def _raise_limit(sizes: Sizes) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < sizes.files:
        raise RuntimeError(f"the abuse takes {sizes.files} file descriptors, `ulimit -Hn` allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (sizes.files if hard == resource.RLIM_INFINITY else hard, hard))


def _fill(host: str, port: int) -> None:
    """The topic with more than a client that does not read can be sent."""
    message = {"topic": FAT_TOPIC, "payload": "x" * _FAT_BYTES}
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(
            "POST", "/v1/messages:batch", json.dumps({"messages": [message] * _FAT_MESSAGES}),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{FAT_TOPIC} could not be filled: {answer.status} {answer.read(200)!r}")
        answer.read()
    finally:
        connection.close()
