"""RocketMQ as a bench needs it. Its proxy makes no topics: those who run the bench do."""

import time
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from duemq.bench.system.system import SiteError

TOPIC = GROUP = "duemq-bench"
_AT_A_TIME = 32  # what the proxy gives at most
_AWAIT_S = 2
_INVISIBLE_S = 300  # nothing is acknowledged: that would take longer than to receive it
_PATIENCE_S = 5.0


class RocketMqTopic:
    """A tag of a topic. What arrived is counted by Apache's consumer, of the group `GROUP`."""

    at_once = 200

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._count = 0

    def options(self) -> dict[str, Any]:
        return {"topic": TOPIC, "tag": self.name}

    def make(self) -> None:
        settings = configuration(self.url)  # first: it keeps the client from opening a log file
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
        """Comes back when none has come for some seconds."""
        from rocketmq.v5.exception import InternalErrorException

        moved_at = time.monotonic()
        while time.monotonic() - moved_at < _PATIENCE_S:
            # An error until the proxy has the settings of the client, which it sends apart.
            with suppress(InternalErrorException):
                messages = self._consumer.receive(_AT_A_TIME, _INVISIBLE_S)
                new = sum(one.tag == self.name and one.delivery_attempt == 1 for one in messages)
                if new:
                    self._count, moved_at = self._count + new, time.monotonic()
        return self._count

    def remove(self) -> None:
        """The tag stays, in a topic that keeps its messages for some days."""
        self._consumer.shutdown()


def configuration(url: str) -> Any:
    """Of Apache's client. `url`: with access and secret key, if there are any."""
    import duemq.relay.rocketmq.client as client

    parts = urlsplit(url)
    keys = client.Credentials(unquote(parts.username or ""), unquote(parts.password or ""))
    return client.ClientConfiguration(f"{parts.hostname}:{parts.port}", keys, request_timeout=10)
