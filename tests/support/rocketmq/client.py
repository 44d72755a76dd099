"""Apache's client of RocketMQ, without the log file that it opens below the home folder when it is imported."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

_LOG_CONFIG = "rocketmq.v5.log.log_config"

if _LOG_CONFIG not in sys.modules:
    own = ModuleType(_LOG_CONFIG)
    own.logger = logging.getLogger("rocketmq")  # type: ignore[attr-defined]
    sys.modules[_LOG_CONFIG] = own

from rocketmq import (  # noqa: E402
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from rocketmq.grpc_protocol import AddressScheme, Code, MessagingServiceStub, QueryRouteRequest  # noqa: E402
from rocketmq.v5.exception import InternalErrorException  # noqa: E402

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
    "SimpleConsumer",
]
