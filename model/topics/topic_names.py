"""Names of duemq's topics on brokers that several clusters share.

Inside duemq a cluster's topics are `duemq.buffer`, `duemq.ledger` and so on, and `destination.NAME` with the topics for
its retries and dead letters. On the brokers, each topic has its cluster's prefix: `duemq.CLUSTER.buffer`,
`retry.duemq.CLUSTER.destination.NAME`. The default cluster, and clusters from before there were prefixes, use `duemq.`
and plain names. Senders cannot send to topics that begin with `duemq.` (`RESERVED_TOPICS`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from duemq.model.topics.group_topics import DEAD, RETRY

OWN: Final = "duemq."
DEFAULT_CLUSTER: Final = "duemq"
_DESTINATION = "destination."
_LEADS = ("", RETRY, DEAD)
# Matches the names of other clusters' topics.
_OTHERS = re.compile(
    r"duemq\.[A-Za-z0-9._-]+\.(buffer|ledger|admin|jobs|trail|relays|clock|dlq)"
    r"|(retry\.|dlq\.)?duemq\.[A-Za-z0-9._-]+\.destination\.[A-Za-z0-9_-]+"
)


_CURSORS = re.compile(r"duemq-place-|duemq\.[A-Za-z0-9._-]+\.place-")


def prefix_of(cluster: str) -> str:
    """The prefix for a new cluster."""
    return OWN if cluster == DEFAULT_CLUSTER else f"{OWN}{cluster}."


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of topics of the cluster with this prefix. `own`: a topic's name inside duemq; `on_brokers`: its name
    on the brokers.

    The group of a destination has the same name as the destination's topic.
    """

    prefix: str = OWN

    def on_brokers(self, topic: str) -> str:
        if self.prefix == OWN:
            return topic
        if topic.startswith(OWN):
            return self.prefix + topic[len(OWN) :]
        for lead in _LEADS:
            if topic.startswith(lead + _DESTINATION):
                return lead + self.prefix + topic[len(lead) :]
        return topic

    def own(self, topic: str) -> str | None:
        """The name of a topic inside duemq; None for another cluster's topic."""
        if self.prefix != OWN:
            for lead in _LEADS:
                if topic.startswith(lead + self.prefix):
                    rest = topic[len(lead) + len(self.prefix) :]
                    name = lead + (rest if rest.startswith(_DESTINATION) else OWN + rest)
                    return name if self.on_brokers(name) == topic else None
        return None if self.on_brokers(topic) != topic or is_of_another(topic) else topic

    @property
    def cursors(self) -> str:
        """The prefix of the groups that store the cursors of named consumers."""
        return "duemq-place-" if self.prefix == OWN else f"{self.prefix}place-"


def is_cursor_group(group: str) -> bool:
    """Whether a cluster stores the cursors of a named consumer under this group. The group's offsets are not real
    offsets."""
    return _CURSORS.match(group) is not None


def is_of_another(topic: str) -> bool:
    """Whether a topic with this name is reserved for clusters with a prefix, so that the default cluster must not use
    it."""
    return _OTHERS.fullmatch(topic) is not None
