"""How far a failure reaches."""

from __future__ import annotations

from enum import IntEnum


class FailureScope(IntEnum):
    """What a failure affects, narrowest first. A handler keeps or narrows a scope; it never widens it."""

    MESSAGE = 1  # one request, message or file
    KEY = 2  # the messages with one key or name
    TOPIC = 3
    DESTINATION = 4
    SHARD = 5  # one shard on this node: the others continue
    NODE = 6  # all shards of the process: its disk, its clock, its log as a whole
    PROCESS = 7  # the process must stop
