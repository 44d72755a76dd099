"""Held tasks go to the app's broker."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Producer

from duemq.client.celery.envelope import Envelope, queue_of
from duemq.client.http.values import Record
from duemq.client.relay.relay import BrokerAway

log = logging.getLogger("duemq.client.celery")


class CeleryOutlet:
    """A connection to the broker, made when it is needed and anew when it broke. AMQP brokers confirm each task."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None
        self._producer: Any = None

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
                **envelope.properties,
            )
        except self._connection.recoverable_connection_errors as error:
            self.close()
            raise BrokerAway(f"{type(error).__name__}: {error}") from error
        except self._connection.recoverable_channel_errors:
            self.close()  # a channel is of no use after an error on it
            raise

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                log.debug("broker: closing failed, %s", error)

    def _connect(self) -> Any:
        if self._producer is None:
            connection = self._app.connection_for_write()
            if connection.transport.driver_type == "amqp":
                connection.transport_options = {**(connection.transport_options or {}), "confirm_publish": True}
            errors = connection.recoverable_connection_errors
            try:
                connection.connect()
                self._connection, self._producer = connection, Producer(connection.default_channel)
            except errors as error:
                connection.release()
                raise BrokerAway(f"{type(error).__name__}: {error}") from error
        return self._producer

    @staticmethod
    def _left_s(expires: datetime | None) -> float | None:
        """A task that has expired goes on without a limit: the worker that gets it says so in its state."""
        left_s = None if expires is None else (expires - datetime.now(UTC)).total_seconds()
        return left_s if left_s is not None and left_s > 0 else None
