"""How far groups of consumers are behind. See docs/operate/lag.md."""

from duemq.model.extras import extra_missing

try:
    from duemq.client.lag.reader import LagReader
    from duemq.client.lag.sampling import Estimate, Sampling
    from duemq.client.lag.values import GroupLag, GroupState, PartitionLag, TopicLag, Total
except ModuleNotFoundError as error:
    raise extra_missing(error, __name__, "duemq[consumer]") from error

__all__ = ["Estimate", "GroupLag", "GroupState", "LagReader", "PartitionLag", "Sampling", "TopicLag", "Total"]
