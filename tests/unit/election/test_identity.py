"""A cluster's identity in ZooKeeper, across versions."""

from __future__ import annotations

import base64

import orjson
import pytest

from duemq.election.zookeeper.layout import decode_identity, encode_identity
from duemq.model.errors import Fatal
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import prefix_of

SECRET = b"s" * 16
BEFORE = {"format": 1, "cluster": "c1", "shards": 4, "secret": base64.b64encode(SECRET).decode()}


def test_a_cluster_from_before_prefixes_keeps_its_topics_whatever_its_name() -> None:
    identity = decode_identity("/duemq/staging/meta", orjson.dumps(BEFORE))
    assert identity == ClusterIdentity("c1", 4, SECRET, "duemq.", None)


@pytest.mark.parametrize("ids", [None, {}, {"duemq.buffer": "b1"}])
def test_an_older_version_reads_the_default_cluster_and_refuses_one_with_a_prefix(ids: dict[str, str] | None) -> None:
    for cluster, format_ in (("duemq", 1), ("staging", 2)):
        identity = ClusterIdentity("c1", 4, SECRET, prefix_of(cluster), ids)
        raw = encode_identity(identity)
        assert orjson.loads(raw)["format"] == format_
        assert orjson.loads(raw).items() >= (BEFORE | {"format": format_}).items()
        assert decode_identity("/duemq/meta", raw) == identity


def test_a_later_format_is_refused() -> None:
    with pytest.raises(Fatal, match="is of format 3, this version of duemq knows up to 2"):
        decode_identity("/duemq/meta", orjson.dumps(BEFORE | {"format": 3}))
