"""The access rights that a cluster needs on brokers with an authorizer, as options for `kafka-acls.sh`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from duemq.cluster.topics.internal_topics import BUFFER, INTERNAL
from duemq.model.messages.dead_letters import DESTINATION
from duemq.model.topics.group_topics import DEAD, RETRY
from duemq.model.topics.topic_names import OWN, TopicNames

_USE = ("Create", "Read", "Write", "Describe", "DescribeConfigs")


def kafka_rights(
    cluster: str,
    names: TopicNames,
    topics: Sequence[str],
    dead_letter: str,
    groups: Sequence[str] = (),
    *,
    makes_topics: bool = True,
) -> Iterator[str]:
    """One line per resource. `topics`: the topics for messages; `groups`: the consumer groups; a name that ends in `*`
    is a prefix. `makes_topics`: whether the cluster creates topics on first use."""
    yield _line("topic", f"{names.prefix}*", _USE)
    for topic in sorted(INTERNAL - {BUFFER}):
        yield _line("topic", names.on_brokers(topic), ["Delete"])  # for trimming, which deletes records
    of_messages = _USE if makes_topics else _USE[1:]
    for topic in (*topics, *(() if dead_letter.startswith(OWN) else (dead_letter,))):
        yield _line("topic", topic, of_messages)
    retry, dead, destination = RETRY, DEAD, DESTINATION
    if names.prefix != OWN:  # only for destinations: consumers' topics do not belong to the cluster
        retry, dead, destination = f"{retry}{names.prefix}", f"{dead}{names.prefix}", names.on_brokers(destination)
    for start in (retry, dead, destination):
        yield _line("topic", f"{start}*", (*_USE, "AlterConfigs"))
    yield _line("topic", f"{dead}*", ["Delete"])
    yield _line("transactional-id", f"duemq-{cluster}-*", ("Write", "Describe"))
    for group in (names.cursors, names.on_brokers(DESTINATION)):
        yield _line("group", f"{group}*", ["Read"])
    for group in groups:
        yield _line("group", group, ["Describe"])
    yield _line("cluster", "", ("IdempotentWrite", "DescribeConfigs"))
    yield _line("transactional-id", "*", ["Describe"])  # to find out which client blocks a shard


def _line(resource: str, name: str, operations: Sequence[str]) -> str:
    """One line of options. A `name` that ends in `*` is a prefix; `*` alone means any name."""
    words = [f"--{resource}"]
    if name:
        words.append(quote(name if name == "*" else name.removesuffix("*")))
    if len(name) > 1 and name.endswith("*"):
        words.append("--resource-pattern-type prefixed")
    return " ".join((*words, *(f"--operation {one}" for one in operations)))
