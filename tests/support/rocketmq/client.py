"""Apache's client of RocketMQ, without the log file that it opens below the home folder on import."""

from __future__ import annotations

from duemq.relay.rocketmq.client import (
    ClientConfiguration,
    Code,
    Credentials,
    MessagingServiceStub,
    Producer,
    QueryRouteRequest,
)

# isort: split
# After the module above, which keeps the client from opening the file.
from rocketmq import FilterExpression, Message, SimpleConsumer
from rocketmq.grpc_protocol import AddressScheme
from rocketmq.v5.exception import InternalErrorException
from rocketmq.v5.util import Signature

__all__ = [
    "AddressScheme",
    "ClientConfiguration",
    "Code",
    "Credentials",
    "FilterExpression",
    "InternalErrorException",
    "Message",
    "MessagingServiceStub",
    "Producer",
    "QueryRouteRequest",
    "Signature",
    "SimpleConsumer",
]
