"""How far groups of consumers are behind. See docs/lag.md."""

from duemq.client.lag.reader import LagReader
from duemq.client.lag.sampling import Estimate, Sampling
from duemq.client.lag.values import GroupLag, PartitionLag, State, TopicLag, Total

__all__ = ["Estimate", "GroupLag", "LagReader", "PartitionLag", "Sampling", "State", "TopicLag", "Total"]
