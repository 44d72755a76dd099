"""How duemq's own names look on brokers that several clusters share.

Inside duemq a cluster's topics are `duemq.buffer`, `duemq.ledger` and so on, and `destination.NAME` with those of its
retries and dead letters. On the brokers each has the prefix of its cluster: `duemq.CLUSTER.buffer`,
`retry.duemq.CLUSTER.destination.NAME`. The default cluster, and one that was made before there were prefixes, have
`duemq.`, and names as they are. Senders reach no topic that begins with `duemq.` (`RESERVED_TOPICS`).
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
# What another cluster has, by its name alone.
_OTHERS = re.compile(
    r"duemq\.[A-Za-z0-9._-]+\.(buffer|ledger|admin|jobs|trail|relays|clock|dlq)"
    r"|(retry\.|dlq\.)?duemq\.[A-Za-z0-9._-]+\.destination\.[A-Za-z0-9_-]+"
)


_CURSORS = re.compile(r"duemq-place-|duemq\.[A-Za-z0-9._-]+\.place-")


def prefix_of(cluster: str) -> str:
    """The prefix of a cluster that is made now."""
    return OWN if cluster == DEFAULT_CLUSTER else f"{OWN}{cluster}."


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of the cluster with this prefix. `own`: what duemq calls a topic; `on_brokers`: what brokers do.

    The group of a destination has the same name as its topic.
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
        """None for a topic that is another cluster's."""
        if self.prefix != OWN:
            for lead in _LEADS:
                if topic.startswith(lead + self.prefix):
                    rest = topic[len(lead) + len(self.prefix) :]
                    name = lead + (rest if rest.startswith(_DESTINATION) else OWN + rest)
                    return name if self.on_brokers(name) == topic else None
        return None if self.on_brokers(topic) != topic or is_of_another(topic) else topic

    @property
    def cursors(self) -> str:
        """How the names of the groups begin that the cursors of named consumers are kept under."""
        return "duemq-place-" if self.prefix == OWN else f"{self.prefix}place-"


def is_cursor_group(group: str) -> bool:
    """Whether a cluster keeps the cursors of a named consumer under this group. Its offsets are none."""
    return _CURSORS.match(group) is not None


def is_of_another(topic: str) -> bool:
    """Whether the default cluster may not have a topic of this name, because a cluster with a prefix may."""
    return _OTHERS.fullmatch(topic) is not None
