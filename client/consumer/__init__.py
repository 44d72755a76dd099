"""Consumes Kafka topics, with retries and dead letters through duemq. See docs/guides/consumers.md."""

from importlib.util import find_spec

from duemq.model.extras import extra_missing

try:
    if find_spec("aiokafka") is None:  # checked here: it is imported only when a consumer of Kafka is created
        raise ModuleNotFoundError(name="aiokafka")
    from duemq.client.consumer.blocking import BlockingConsumer
    from duemq.client.consumer.collector import ConsumerCollector
    from duemq.client.consumer.consumer import Consumer
    from duemq.client.consumer.message import Message
    from duemq.client.consumer.options import ConsumerOptions, Mode
    from duemq.client.consumer.retry.policy import Delays, Exponential, Levels, Pause, Reject, RetryLater
except ModuleNotFoundError as error:
    raise extra_missing(error, __name__, "duemq[consumer]") from error

__all__ = [
    "BlockingConsumer",
    "Consumer",
    "ConsumerCollector",
    "ConsumerOptions",
    "Delays",
    "Exponential",
    "Levels",
    "Message",
    "Mode",
    "Pause",
    "Reject",
    "RetryLater",
]
