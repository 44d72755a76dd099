"""A short help text for each page of the console, and the page in the documentation that explains more."""

from __future__ import annotations

from typing import Final, NamedTuple


class Help(NamedTuple):
    text: str
    docs: str


_CONSOLE: Final = "operate/console.md"
_PAGES: Final = {
    "": Help("Problems first. Rates and lateness cover all topics; charts begin with this process.",
             "operate/operations.md"),
    "messages": Help("A message is scheduled, delivered to its topic, cancelled, or a dead letter. What consumers and "
                     "destinations do with it afterwards is up to them.", "explain/guarantees.md"),
    "schedule": Help("The message goes to its topic at the time that you set. Under a name it is accepted once.",
                     "reference/api.md"),
    "dlq": Help("duemq's own dead letters expired, or no topic took them. Those of a group are in dlq.GROUP, "
                "those of a destination in dlq.destination.NAME, until they are purged. A redrive delivers one more "
                "time.", "guides/dead-letters.md"),
    "topics": Help("Messages are delivered into topics, where consumers and destinations read them. Pending ones are "
                   "not in the topic yet.", "guides/consumers.md"),
    "cluster": Help("Each shard has one master, which delivers its due messages. A drained node hands its shards "
                    "over first.", "operate/cluster.md"),
    "destinations": Help("A relay sends messages of topics to a system, such as an HTTP endpoint, and tries again "
                         "if it refuses them. Its dead letters are in dlq.destination.NAME.", "guides/destinations.md"),
    "jobs": Help("A job cancels, moves, redrives or purges all that match a filter, and survives restarts.",
                 "guides/dead-letters.md"),
    "files": Help("Messages due in more than some hours are sealed into files, one window of 30 minutes each.",
                  "guides/delay-files.md"),
    "imports": Help("A Parquet file of messages is scheduled as a whole or not at all.", "guides/delay-files.md"),
    "keys": Help("A key says what its holder may do, and for which topics. Its text is shown once.",
                 "operate/security.md"),
    "trail": Help("All changes and denied requests. Messages keep their own history, too.",
                  "operate/security.md"),
}  # fmt: skip


def help_of(path: str) -> Help:
    """The help for a page. `path`: relative to the root of the console."""
    return _PAGES.get(path.strip("/").partition("/")[0].partition(":")[0], Help("", _CONSOLE))
