"""The commands of files that belong together are appended by one commit: all of them, or none."""

from __future__ import annotations

import pytest

from duemq.bus.base import Batches, TopicNames
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import Unavailable
from duemq.model.messages.import_command import ImportCommand, shard_of_content
from duemq.model.timing import WINDOW_MS
from tests.unit.gateway.test_gateway import SHARDS, Site, at_site

FILES = [ImportCommand(f"/shared/{n}", f"{n * 0x1234567:08x}" + "0" * 56, 1, WINDOW_MS, 1) for n in range(12)]


async def in_log(site: Site) -> int:
    return sum([await site.bus.end_offset(BUFFER, shard) for shard in range(SHARDS)])


def test_all_commands_are_appended_at_once_each_to_its_shard() -> None:
    seen: list[Batches] = []

    async def scenario(site: Site) -> None:
        found = await site.gateway.import_files(FILES)
        assert [one.shard for one in found] == [shard_of_content(one.sha256, SHARDS) for one in FILES]
        assert len({one.shard for one in found}) > 1 and len({one.id for one in found}) == len(FILES)
        assert len([batches for batches in seen if any(topic == BUFFER for topic, _ in batches)]) == 1
        assert await in_log(site) == len(FILES)

    at_site(scenario, seen.append)


def test_nothing_is_appended_where_the_log_refuses_a_part() -> None:
    def refuse(batches: Batches) -> None:
        if (BUFFER, shard_of_content(FILES[-1].sha256, SHARDS)) in batches:
            raise Unavailable("this partition has no leader")

    async def scenario(site: Site) -> None:
        with pytest.raises(Unavailable, match="no leader"):
            await site.gateway.import_files(FILES)
        assert await in_log(site) == 0

    at_site(scenario, refuse)


def test_of_two_proxies_at_once_one_is_told_to_ask_again() -> None:
    async def scenario(site: Site) -> None:
        committer = site.bus.committer

        async def fenced(name: str, _: TopicNames) -> object:
            older = await committer(name)
            await committer(name)  # by another proxy
            return older

        site.bus.committer = fenced  # type: ignore[assignment]
        with pytest.raises(Unavailable, match="nothing was accepted"):
            await site.gateway.import_files(FILES)
        assert await in_log(site) == 0

    at_site(scenario)
