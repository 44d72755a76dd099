"""Creates the consumer for a group. The consumer's messages wait in a pool for callers."""

from __future__ import annotations

from collections.abc import Callable, Collection

from duemq.client.consumer.base import ConsumerLog
from duemq.client.consumer.consumer import Consumer
from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.work.pool import Owner
from duemq.relay.figures import DestinationFigures
from duemq.relay.groups.lease_pool import LeasePool


def group_consumer(
    group: str,
    topics: Collection[str],
    options: ConsumerOptions,
    log: ConsumerLog,
    figures: DestinationFigures,
    clock: Callable[[], int],
) -> tuple[Consumer, LeasePool]:
    """The consumer and its pool. `clock`: returns epoch ms."""
    pools = list[LeasePool]()

    def make_pool(owner: Owner) -> LeasePool:
        pools.append(LeasePool(owner, figures, clock, options.max_in_hand, options.max_in_hand_bytes))
        return pools[0]

    consumer = Consumer(group, options=options, log=log, pool=make_pool)
    for topic in topics:
        consumer.add(topic, _leased)
    return consumer, pools[0]


async def _leased(message: Message) -> None:
    """A placeholder: a consumer requires a handler for each topic, but the pool of a group does not call it."""
