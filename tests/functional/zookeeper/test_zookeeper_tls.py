"""A ZooKeeper that speaks TLS only, and asks clients for certificates."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.election.zookeeper.registry import Registry
from duemq.model.errors import BadConfig, Unavailable
from tests.support.servers.zookeeper_nodes import cluster
from tests.support.servers.zookeeper_tls import SecureZooKeeper
from tests.support.tls.certificates import Authority

pytestmark = [
    pytest.mark.anyio,
    # kazoo leaves the socket of a failed handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def options(zookeeper_tls: SecureZooKeeper) -> ZooKeeperOptions:
    files = zookeeper_tls.client
    return ZooKeeperOptions(
        zookeeper_tls.hosts, chroot=f"/{uuid4()}", tls=True, ca_file=files.ca, cert_file=files.cert, key_file=files.key
    )


async def test_nodes_share_shards_over_tls(options: ZooKeeperOptions) -> None:
    async with cluster(options) as nodes:
        for name in "ab":
            await nodes.add(name)
        await nodes.settled()
        assert set(nodes.owned().values()) == {"a", "b"}


async def test_neither_end_takes_a_stranger(
    options: ZooKeeperOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority.make(tmp_path).issue("stranger")
    for wrong in (
        replace(options, ca_file=stranger.ca),
        replace(options, cert_file="", key_file=""),
        replace(options, cert_file=stranger.cert, key_file=stranger.key),
        replace(options, tls=False, ca_file="", cert_file="", key_file=""),
    ):
        registry = Registry(replace(wrong, connect_timeout_s=2), "duemq")
        told = r"by TLS: .* zookeeper\.ca_file" if wrong.tls else "no ZooKeeper answered"
        with pytest.raises(Unavailable, match=told), caplog.at_level(logging.INFO):
            await registry.open()
        await registry.close()


async def test_new_files_are_used_for_the_next_connection(options: ZooKeeperOptions, tmp_path: Path) -> None:
    """kazoo reads them each time it connects: an expired certificate that was replaced needs no restart."""
    stranger = Authority.make(tmp_path).issue("client")
    held = replace(options, cert_file=stranger.cert, key_file=stranger.key, connect_timeout_s=60)
    registry = Registry(held, "duemq")
    opening = asyncio.create_task(registry.open())
    await asyncio.sleep(0.5)
    assert not opening.done()
    for good, used in ((options.key_file, stranger.key), (options.cert_file, stranger.cert)):
        await asyncio.to_thread(shutil.copyfile, good, used)
    await opening
    assert await registry.identity(2)
    await registry.close()


def test_what_cannot_work_is_told_before_anything_connects(options: ZooKeeperOptions, tmp_path: Path) -> None:
    stranger = Authority.make(tmp_path).issue("stranger")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"tls": False}, r"^zookeeper\.ca_file is set, but zookeeper\.tls is off"),
        ({"key_file": stranger.key}, r"^zookeeper\.key_file: the key in .* does not belong to the certificate"),
        ({"key_file": ""}, r"^zookeeper\.cert_file and zookeeper\.key_file belong together"),
        ({"ca_file": stranger.key}, r"^zookeeper\.ca_file: .* has no certificates"),
    ]
    for change, told in changes:
        with pytest.raises(BadConfig, match=told):
            replace(options, **change)
