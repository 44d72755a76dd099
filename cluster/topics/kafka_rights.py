"""What a cluster has to be allowed on brokers with an authorizer, as options of `kafka-acls.sh`."""

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
    """One line per resource. `topics`: of messages, `groups`: of consumers; a last `*` for all that begin so.
    `makes_topics`: on first use."""
    yield _line("topic", f"{names.prefix}*", _USE)
    for topic in sorted(INTERNAL - {BUFFER}):
        yield _line("topic", names.on_brokers(topic), ["Delete"])  # of records: trimming
    of_messages = _USE if makes_topics else _USE[1:]
    for topic in (*topics, *(() if dead_letter.startswith(OWN) else (dead_letter,))):
        yield _line("topic", topic, of_messages)
    retry, dead, destination = RETRY, DEAD, DESTINATION
    if names.prefix != OWN:  # of destinations alone: topics of consumers are not the cluster's
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
    yield _line("transactional-id", "*", ["Describe"])  # to name the client that blocks a shard


def _line(resource: str, name: str, operations: Sequence[str]) -> str:
    """A `name` that ends in `*` is a prefix; `*` alone is any."""
    words = [f"--{resource}"]
    if name:
        words.append(quote(name if name == "*" else name.removesuffix("*")))
    if len(name) > 1 and name.endswith("*"):
        words.append("--resource-pattern-type prefixed")
    return " ".join((*words, *(f"--operation {one}" for one in operations)))
