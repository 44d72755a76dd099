"""Requests in RocketMQ's gRPC protocol, and how messages are grouped into them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from duemq.relay.base import Reply
from duemq.relay.rocketmq.client import Encoding, MessageType, SendMessageRequest
from duemq.relay.rocketmq.mapping import Publication

_MESSAGES: Final = 64
_BYTES: Final = 1 << 20
"""Limit for the size of a request. Brokers limit a request as if it were a single message: to 4 MiB by default."""
_HOST: Final = socket.gethostname()


class PendingSend(NamedTuple):
    """A message that waits for its reply."""

    publication: Publication
    reply: asyncio.Future[Reply]


class SendQueue:
    """Messages that wait to be sent, by topic: all messages in a request must have the same topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[PendingSend]] = {}

    def add(self, sending: PendingSend) -> None:
        self._waiting.setdefault(sending.publication.topic, deque()).append(sending)

    def next(self) -> list[PendingSend]:
        """The messages for the next request, without cancelled ones. Empty if no message waits.

        A message with a group is sent alone: for a request with several messages, the proxy does not choose the queue
        by the group.
        """
        while self._waiting:
            topic, waiting = next(iter(self._waiting.items()))
            del self._waiting[topic]
            batch, size = list[PendingSend](), 0
            while waiting and len(batch) < _MESSAGES:
                publication, reply = waiting[0]
                if not reply.done():
                    size += publication.size
                    if batch and (size > _BYTES or publication.message_group is not None):
                        break
                    batch.append(waiting[0])
                waiting.popleft()
            if waiting:
                self._waiting[topic] = waiting  # at the end, after the other topics
            if batch:
                return batch
        return []


def send_request(publications: Iterable[Publication]) -> SendMessageRequest:
    """The request that sends these messages, which must have the same topic. The broker stores either all of them or
    none."""
    request, now = SendMessageRequest(), int(time.time())
    for one in publications:
        message = request.messages.add(body=one.body, user_properties=one.properties)
        message.topic.name = one.topic
        system = message.system_properties
        system.message_id, system.born_host, system.born_timestamp.seconds = one.message_id, _HOST, now
        system.body_encoding = Encoding.IDENTITY
        system.keys.extend(one.keys)
        if one.tag:
            system.tag = one.tag
        if one.message_group is None:
            system.message_type = MessageType.NORMAL
        else:
            system.message_type, system.message_group = MessageType.FIFO, one.message_group
    return request
