"""How far groups of consumers are behind. See docs/lag.md."""

from duemq.client.lag.reader import LagReader
from duemq.client.lag.sampling import Estimate, Sampling
from duemq.client.lag.values import GroupLag, GroupState, PartitionLag, TopicLag, Total

__all__ = ["Estimate", "GroupLag", "GroupState", "LagReader", "PartitionLag", "Sampling", "TopicLag", "Total"]
