"""Imports Apache's client for RocketMQ, and prevents it from writing files and logs.

On import, the client opens a log file in the home folder, which cannot be turned off. The import fails if the file
cannot be opened. This module replaces the client's module that opens the file. Replies contain the same information as
the client's log.
"""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import Final

_LOG_CONFIG: Final = "rocketmq.v5.log.log_config"
_LOGGER: Final = logging.getLogger("rocketmq")

if _LOG_CONFIG not in sys.modules:
    own = ModuleType(_LOG_CONFIG)
    own.logger = _LOGGER  # type: ignore[attr-defined]
    sys.modules[_LOG_CONFIG] = own
if _LOGGER.level == logging.NOTSET:
    _LOGGER.setLevel(logging.CRITICAL)

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise gRPC prints a line for each failed TLS handshake

from grpc import StatusCode  # noqa: E402
from grpc.aio import AioRpcError  # noqa: E402
from rocketmq import ClientConfiguration, Credentials, Producer  # noqa: E402
from rocketmq.grpc_protocol import (  # noqa: E402
    Code,
    Encoding,
    MessageType,
    MessagingServiceStub,
    Permission,
    QueryRouteRequest,
    SendMessageRequest,
)
from rocketmq.v5.client.balancer import QueueSelector  # noqa: E402
from rocketmq.v5.client.connection import RpcChannel, RpcClient  # noqa: E402
from rocketmq.v5.exception import IllegalArgumentException  # noqa: E402

__all__ = [
    "AioRpcError",
    "ClientConfiguration",
    "Code",
    "Credentials",
    "Encoding",
    "IllegalArgumentException",
    "MessageType",
    "MessagingServiceStub",
    "Permission",
    "Producer",
    "QueryRouteRequest",
    "QueueSelector",
    "RpcChannel",
    "RpcClient",
    "SendMessageRequest",
    "StatusCode",
]


def _not_of_the_client(record: logging.LogRecord) -> bool:
    """Whether a log record has nothing to do with the client. The client's callback for a failed heartbeat raises an
    error, which `concurrent.futures` would log with a traceback."""
    traceback = record.exc_info[1].__traceback__ if record.exc_info and record.exc_info[1] else None
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").startswith("rocketmq."):
            return False
        traceback = traceback.tb_next
    return True


logging.getLogger("concurrent.futures").addFilter(_not_of_the_client)
