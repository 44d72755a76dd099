"""One request in Kafka's protocol: it asks a broker which brokers it considers alive."""

from __future__ import annotations

import socket
import struct

from duemq.dev.servers.ports import HOST

_METADATA, _VERSION = 3, 1
# Request header v1: API key, version, correlation id, no client id; body: an empty list of topics.
_REQUEST = struct.pack(">hhihi", _METADATA, _VERSION, 1, -1, 0)


def live_brokers(port: int, timeout_s: float = 2.0) -> frozenset[int]:
    """The ids of the nodes that the broker on this port considers alive; empty while it does not answer."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                return _node_ids(answer.read(size))
    except (OSError, struct.error):
        return frozenset()


def _node_ids(answer: bytes) -> frozenset[int]:
    """The node ids in a Metadata v1 answer: correlation id, then brokers as (id, host, port, rack or nothing)."""
    (count,) = struct.unpack_from(">i", answer, 4)
    place, ids = 8, set()
    for _ in range(count):
        (node_id, host_length) = struct.unpack_from(">ih", answer, place)
        place += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", answer, place)
        place += 2 + max(rack_length, 0)
        ids.add(node_id)
    return frozenset(ids)
