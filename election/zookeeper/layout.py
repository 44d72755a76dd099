"""duemq's data in ZooKeeper, under `CHROOT/CLUSTER`. All of it is JSON, readable with any tool.

    meta           cluster, shards, secret, prefix, topics, format   created once; topics are added at the first start
    nodes/NAME     a member                          ephemeral: gone with its session, or deleted by a peer at its death
    locks/SHARD    the holder, or nothing            persistent
    drain/NAME     an operator's drain request       persistent: it outlives restarts of the node

A lock contains the holder's name and the id of the transaction that created the holder's entry under `nodes`. It is
held as long as that entry exists. So one deletion frees all locks of a dead node. And a node that was declared dead by
mistake gets an entry with another transaction id, so it no longer holds its old locks. Locks are never deleted: their
version only grows, and each write requires the version that was read, so a late claim or release fails instead of
affecting the next holder.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from duemq.election.base import Member, NodeHealth, NodeState
from duemq.election.zookeeper.session import Znode
from duemq.model.errors import Fatal
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import OWN

# A cluster with a prefix has the second format, because an older duemq would ignore the prefix and use another
# cluster's topics.
FORMAT, WITH_PREFIX = 1, 2


@dataclass(frozen=True, slots=True)
class Layout:
    root: str

    @property
    def meta(self) -> str:
        return f"{self.root}/meta"

    @property
    def nodes(self) -> str:
        return f"{self.root}/nodes"

    @property
    def locks(self) -> str:
        return f"{self.root}/locks"

    @property
    def drain(self) -> str:
        return f"{self.root}/drain"

    def node(self, name: str) -> str:
        return f"{self.nodes}/{name}"

    def lock(self, shard: int) -> str:
        return f"{self.locks}/{shard}"

    def wish(self, name: str) -> str:
        return f"{self.drain}/{name}"


@dataclass(frozen=True, slots=True)
class Registration:
    """A member's entry in ZooKeeper. `instance`: a random id of the process."""

    member: Member
    instance: str
    born: int
    session: int
    version: int


@dataclass(frozen=True, slots=True)
class Lock:
    """`holder` is empty and `born` is 0 if the lock has no holder."""

    holder: str
    born: int
    version: int


def encode_identity(identity: ClusterIdentity) -> bytes:
    document = {
        "format": FORMAT if identity.prefix == OWN else WITH_PREFIX, "cluster": identity.cluster,
        "shards": identity.shards, "secret": base64.b64encode(identity.secret).decode(), "prefix": identity.prefix,
    }  # fmt: skip
    if identity.topic_ids is not None:
        document["topics"] = dict(identity.topic_ids)
    return orjson.dumps(document)


def decode_identity(path: str, data: bytes) -> ClusterIdentity:
    """Parse the cluster's identity. Raises Fatal if it is unreadable."""
    try:
        fields = orjson.loads(data)
        if fields["format"] not in (FORMAT, WITH_PREFIX):
            raise Fatal(
                f"{path} in ZooKeeper is of format {fields['format']}, this version of duemq knows up to {WITH_PREFIX}"
            )
        return ClusterIdentity(
            fields["cluster"], fields["shards"], base64.b64decode(fields["secret"], validate=True),
            fields.get("prefix", OWN), fields.get("topics"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise Fatal(f"{path} in ZooKeeper was not written by duemq: choose another zookeeper.chroot") from error


def encode_member(member: Member, instance: str) -> bytes:
    health = member.health
    return orjson.dumps(
        {
            "instance": instance,
            "url": member.url,
            "link": member.link,
            "rack": member.rack,
            "holds": None if member.holds is None else sorted(member.holds),
            "state": health.state.value,
            "reason": health.reason,
            "lag": {str(shard): entries for shard, entries in health.lag.items()},
            "watermark": health.watermark,
            "full": health.full,
            "unfit": {str(shard): why for shard, why in health.unfit.items()},
            "topics": dict(health.topic_states),
        }
    )


def decode_member(name: str, znode: Znode) -> Registration | None:
    """The registration in a znode; None if there is no readable one."""
    try:
        fields = orjson.loads(znode.data)
        lag = {int(shard): entries for shard, entries in fields["lag"].items()}
        member = Member(
            name,
            fields["url"],
            fields["link"],
            fields["rack"],
            None if fields["holds"] is None else frozenset(fields["holds"]),
            # Nodes of older versions leave out the last fields.
            NodeHealth(
                NodeState(fields["state"]),
                fields["reason"],
                lag,
                fields.get("watermark", 0),
                fields.get("full", ""),
                {int(shard): str(why) for shard, why in fields.get("unfit", {}).items()},
                dict(fields.get("topics", {})),
            ),
        )
        return Registration(member, fields["instance"], znode.born, znode.session, znode.version)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def encode_lock(holder: str, born: int) -> bytes:
    return orjson.dumps({"holder": holder, "born": born})


NO_HOLDER = encode_lock("", 0)


def decode_lock(znode: Znode) -> Lock:
    """Parse a lock. An unreadable lock counts as free."""
    try:
        fields = orjson.loads(znode.data)
        return Lock(str(fields["holder"]), int(fields["born"]), znode.version)
    except (ValueError, KeyError, TypeError):
        return Lock("", 0, znode.version)


def decode_locks(znodes: Mapping[str, Znode]) -> dict[int, Lock]:
    return {int(shard): decode_lock(znode) for shard, znode in znodes.items() if shard.isdecimal()}
