"""What duemq keeps in ZooKeeper, under `CHROOT/CLUSTER`. All of it is JSON, for whoever looks with another tool.

    meta           cluster, shards, secret, prefix, topics, format   made once, topics at the first start
    nodes/NAME     a member                          ephemeral: gone with its session, or deleted by who saw it die
    locks/SHARD    the holder, or nothing            persistent
    drain/NAME     a wish of an operator             persistent: it outlives restarts of the node

A lock names its holder and the transaction in which the holder's node under `nodes` was born. It is held while that
very node is there. So one deletion frees all that a dead node held, and a node that was declared dead by mistake and
comes back has another birth: what it held before is not its own any more. Locks are never deleted: they are written
against their version, which only grows, so a late claim or release fails instead of hitting the next holder.
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

# A cluster with a prefix has the second one: an older duemq would take the topics of another cluster for its own.
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
    """A member as it stands in ZooKeeper. `instance`: random, one for each process that took part."""

    member: Member
    instance: str
    born: int
    session: int
    version: int


@dataclass(frozen=True, slots=True)
class Lock:
    """`holder` and `born` are empty and 0 when nobody took it."""

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
    """Raises Fatal."""
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
    """The registration in a znode; None if it holds none."""
    try:
        fields = orjson.loads(znode.data)
        lag = {int(shard): entries for shard, entries in fields["lag"].items()}
        member = Member(
            name,
            fields["url"],
            fields["link"],
            fields["rack"],
            None if fields["holds"] is None else frozenset(fields["holds"]),
            # A node of an older version says nothing of the last ones.
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
    """One that cannot be understood is free."""
    try:
        fields = orjson.loads(znode.data)
        return Lock(str(fields["holder"]), int(fields["born"]), znode.version)
    except (ValueError, KeyError, TypeError):
        return Lock("", 0, znode.version)


def decode_locks(znodes: Mapping[str, Znode]) -> dict[int, Lock]:
    return {int(shard): decode_lock(znode) for shard, znode in znodes.items() if shard.isdecimal()}
