"""Publishes held tasks to the app's broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from celery import Celery
from kombu import Producer

from duemq.client.celery.envelope import Envelope, queue_of
from duemq.client.http.values import Record
from duemq.client.relay.redis_errors import is_redis_away
from duemq.client.relay.relay import BrokerAway

TIMEOUT_S: Final = 5.0

log = logging.getLogger("duemq.client.celery")


class CeleryOutlet:
    """A connection to the broker, opened on demand and reopened after an error. AMQP brokers confirm each task.

    `timeout_s`: how long a broker may be silent before it counts as unreachable.
    """

    def __init__(self, app: Celery, timeout_s: float = TIMEOUT_S) -> None:
        self._app, self._timeout_s = app, timeout_s
        self._connection: Any = None
        self._producer: Any = None
        self._publish_options: dict[str, Any] = {}

    def publish(self, record: Record) -> None:
        envelope = Envelope.decode(record.payload)
        declare = [queue_of(self._app, named) for named in envelope.declare]
        producer = self._connect()
        try:
            producer.publish(
                envelope.body,
                content_type=envelope.content_type,
                content_encoding=envelope.content_encoding,
                headers=dict(envelope.headers),
                exchange=envelope.exchange,
                routing_key=envelope.routing_key,
                priority=envelope.priority,
                expiration=self._left_s(envelope.expires),
                declare=declare,
                **self._publish_options,
                **envelope.properties,
            )
        except Exception as error:
            away = is_redis_away(error)
            if away is None:
                away = isinstance(error, self._connection.recoverable_connection_errors)
            self._abandon()  # a channel is unusable after an error
            if away:
                raise BrokerAway(f"{type(error).__name__}: {error}") from error
            raise

    def close(self) -> None:
        self._close(lambda connection: connection.release())

    def _abandon(self) -> None:
        """Close without telling the broker, which may be silent."""
        self._close(lambda connection: connection.collect(self._timeout_s))

    def _close(self, how: Callable[[Any], None]) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                how(connection)
            except Exception as error:
                log.debug("broker: closing failed, %s", error)

    def _connect(self) -> Any:
        """The producer. Errors on the way to it are never the task's fault: the broker is unreachable."""
        if self._producer is None:
            connection, silence_s = self._app.connection_for_write(), self._timeout_s
            options = dict(connection.transport_options or {})
            if connection.transport.driver_type == "amqp":
                options = {"read_timeout": silence_s, "write_timeout": silence_s, **options, "confirm_publish": True}
                self._publish_options = {"timeout": silence_s}
            elif connection.transport.driver_type == "redis":
                options = {"socket_timeout": silence_s, "socket_connect_timeout": silence_s, **options}
            connection.transport_options = options
            self._connection = connection
            try:
                connection.connect()
                self._producer = Producer(connection.default_channel)
            except Exception as error:
                self._abandon()
                raise BrokerAway(f"{type(error).__name__}: {error}") from error
        return self._producer

    @staticmethod
    def _left_s(expires: datetime | None) -> float | None:
        """Seconds left, or None for no limit. An expired task has no limit: a worker gets it and reports that."""
        left_s = None if expires is None else (expires - datetime.now(UTC)).total_seconds()
        return left_s if left_s is not None and left_s > 0 else None
