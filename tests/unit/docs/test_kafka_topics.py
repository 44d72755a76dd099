"""docs/cluster.md lists duemq's own topics, all of them, and the right to trim where they are trimmed."""

from __future__ import annotations

import re

from duemq.bus.kafka.topics.clock_topic import CLOCK_TOPIC
from duemq.cluster.internal_topics import BUFFER, INTERNAL
from tests.support.servers.documented_rights import commands, section


def test_all_own_topics_are_listed() -> None:
    listed = set(re.findall(r"^\| `(duemq\.\w+)`", section("Topics of duemq"), flags=re.MULTILINE))
    assert listed == {*INTERNAL, CLOCK_TOPIC, "duemq.dlq"}
    deleting = {name for line in commands() if "Delete" in line for name in re.findall(r"--topic (duemq\.\w+)", line)}
    assert deleting == INTERNAL - {BUFFER}
