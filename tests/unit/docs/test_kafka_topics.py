"""docs/operate/cluster.md lists duemq's own topics, all of them, and the right to trim where they are trimmed."""

from __future__ import annotations

import re
from pathlib import Path

from duemq.bus.kafka.clock.clock_topic import CLOCK_TOPIC
from duemq.cluster.topics.internal_topics import BUFFER, INTERNAL
from duemq.cluster.topics.kafka_rights import kafka_rights
from duemq.model.topics.topic_names import TopicNames

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "cluster.md").read_text()


def test_all_own_topics_are_listed() -> None:
    listed = set(re.findall(r"^\| `(duemq\.\w+)`", section("Topics of duemq"), flags=re.MULTILINE))
    assert listed == {*INTERNAL, CLOCK_TOPIC, "duemq.dlq"}
    (row,) = re.findall(r"^\| topics (.*) \| Delete \| trimming", section("Kafka rights"), flags=re.MULTILINE)
    assert set(re.findall(r"duemq\.\w+", row)) == INTERNAL - {BUFFER}


def test_rights_are_printed_for_the_names_of_the_cluster_and_for_topics_of_messages() -> None:
    own = list(kafka_rights("duemq", TopicNames(), ["orders", "mails.*"], "dead", ["billing"], makes_topics=False))
    use = "--operation Read --operation Write --operation Describe --operation DescribeConfigs"
    for named in ("orders", "dead", "mails. --resource-pattern-type prefixed"):
        assert f"--topic {named} {use}" in own
    assert "--group billing --operation Describe" in own
    other = list(kafka_rights("staging", TopicNames("duemq.staging."), ["*"], "duemq.dlq"))
    assert f"--topic '*' --operation Create {use}" in other
    names = {line.split()[1] for line in other} - {"'*'", "--operation"}
    assert all("staging" in name for name in names), names
    assert {"retry.duemq.staging.", "dlq.duemq.staging.", "duemq.staging.destination."} <= names


def section(title: str) -> str:
    return PAGE.partition(f"### {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
