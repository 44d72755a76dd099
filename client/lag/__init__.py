"""Measures how far consumer groups are behind. See docs/operate/lag.md."""

from duemq.model.extras import extra_missing

try:
    from duemq.client.lag.reader import LagReader
    from duemq.client.lag.values import GroupLag, GroupState, Matches, PartitionLag, TopicLag, Total
except ModuleNotFoundError as error:
    raise extra_missing(error, __name__, "duemq[consumer]") from error

__all__ = ["GroupLag", "GroupState", "LagReader", "Matches", "PartitionLag", "TopicLag", "Total"]
