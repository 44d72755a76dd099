"""RocketMQ for a bench. RocketMQ's proxy creates no topics, so create them before the bench."""

import time
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from duemq.bench.system.system import SiteError

TOPIC = GROUP = "duemq-bench"
_AT_A_TIME = 32  # messages per request, the proxy's limit
_AWAIT_S = 2
_INVISIBLE_S = 300  # messages are not acknowledged, because this would take longer than receiving them
_PATIENCE_S = 5.0


class RocketMqTopic:
    """A tag in a topic. Apache's consumer, in the group `GROUP`, counts the messages."""

    at_once = 200

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._count = 0

    def options(self) -> dict[str, Any]:
        return {"topic": TOPIC, "tag": self.name}

    def make(self) -> None:
        settings = configuration(self.url)  # first, because it prevents the client from opening a log file
        from rocketmq import FilterExpression, SimpleConsumer

        subscription = {TOPIC: FilterExpression(self.name)}
        self._consumer = SimpleConsumer(settings, GROUP, subscription, await_duration=_AWAIT_S)
        self._consumer.startup()
        try:
            self._consumer.route_manager.retrieve_topic_route_data(TOPIC)
        except Exception as error:
            self._consumer.shutdown()
            text = f"no topic {TOPIC} by RocketMQ's proxy: make it, and the consumer group {GROUP}, with mqadmin"
            raise SiteError(text) from error

    def count(self) -> int:
        """Count messages until none has arrived for several seconds."""
        from rocketmq.v5.exception import InternalErrorException

        moved_at = time.monotonic()
        while time.monotonic() - moved_at < _PATIENCE_S:
            # Raises until the proxy has received the client's settings, which are sent separately.
            with suppress(InternalErrorException):
                messages = self._consumer.receive(_AT_A_TIME, _INVISIBLE_S)
                new = sum(one.tag == self.name and one.delivery_attempt == 1 for one in messages)
                if new:
                    self._count, moved_at = self._count + new, time.monotonic()
        return self._count

    def remove(self) -> None:
        """Close the consumer. The tag's messages stay in the topic, which keeps messages for several days."""
        self._consumer.shutdown()


def configuration(url: str) -> Any:
    """The configuration for Apache's client. `url`: includes access key and secret key, if there are any."""
    import duemq.relay.rocketmq.client as client

    parts = urlsplit(url)
    keys = client.Credentials(unquote(parts.username or ""), unquote(parts.password or ""))
    return client.ClientConfiguration(f"{parts.hostname}:{parts.port}", keys, request_timeout=10)
