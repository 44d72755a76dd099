"""Messages of a RocketMQ topic as its own `mqadmin printMsg` prints them: read from the broker, by no code of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LINE = re.compile(
    r"MSGID: (?P<id>\S+) MessageExt \[brokerName=\S+, queueId=(?P<queue>\d+), .*? queueOffset=(?P<offset>\d+), .*"
    r" properties=\{(?P<properties>.*)\}, body=\[(?P<body>[-0-9, ]*)\], transactionId=.*"
)
_NEXT = re.compile(r", (?=[^=,]+=)")


@dataclass(frozen=True, slots=True)
class Stored:
    """One message. `properties` has RocketMQ's own, too (KEYS, TAGS, UNIQ_KEY and others), in capitals."""

    message_id: str
    queue: int
    offset: int
    properties: dict[str, str]
    body: bytes

    @property
    def tag(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> frozenset[str]:
        """In no order: the client keeps a set."""
        return frozenset(self.properties.get("KEYS", "").split())


def stored(lines: Iterable[str]) -> Iterator[Stored]:
    """Parse its output.

    Names and values are not quoted in it: a value that contains `, NAME=` is parsed as two properties.
    """
    for line in lines:
        if found := _LINE.match(line):
            pairs = (pair.partition("=") for pair in _NEXT.split(found["properties"]))
            body = bytes(int(number) % 256 for number in found["body"].split(", ") if number)
            yield Stored(
                found["id"], int(found["queue"]), int(found["offset"]), {name: value for name, _, value in pairs}, body
            )
