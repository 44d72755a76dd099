"""A gRPC proxy of RocketMQ with scripted answers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Self

import grpc

from duemq.dev.servers.ports import HOST
from duemq.relay.rocketmq.client import Code

# isort: split
# After the module above, which keeps the client from opening a log file.
from rocketmq.grpc_protocol import AddressScheme, Permission
from rocketmq.grpc_protocol.service_pb2 import QueryRouteResponse, SendMessageResponse
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceServicer, add_MessagingServiceServicer_to_server


class FakeProxy(MessagingServiceServicer):  # type: ignore[misc]
    """`answer`: the code of each request; it may raise by the context. `route`: that of each question for a topic.
    `answering`: while it is clear nothing is answered. `bad`: ids of messages; a request with one of them is refused.
    `requests`: the ids of each request, as they came.
    `words`: of an answer. `permission`: of the queue of each topic.
    `key`, `cert`: PEM; with them it speaks TLS. `ca`: PEM; whose certificates clients have to have."""

    def __init__(self, key: bytes = b"", cert: bytes = b"", ca: bytes | None = None) -> None:
        self.answer: Callable[[Any], int] = lambda context: Code.OK
        self.route = Code.OK
        self.words, self.permission = "of the message", Permission.READ_WRITE
        self.answering = Event()
        self.answering.set()
        self.bad: set[str] = set()
        self.requests: list[list[str]] = []
        self.peers: set[str] = set()
        self.signatures: set[str] = set()
        self._server = grpc.server(ThreadPoolExecutor(32))
        add_MessagingServiceServicer_to_server(self, self._server)
        if key:
            credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=ca is not None)
            self.port = self._server.add_secure_port(f"{HOST}:0", credentials)
        else:
            self.port = self._server.add_insecure_port(f"{HOST}:0")
        self.endpoint = f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(0).wait()

    def QueryRoute(self, request: Any, context: Any) -> Any:
        self.answering.wait(10)
        response = QueryRouteResponse()
        response.status.code, response.status.message = self.route, "of the route"
        queue = response.message_queues.add()
        queue.topic.name = request.topic.name
        queue.permission = self.permission
        queue.accept_message_types.append(1)  # NORMAL
        queue.broker.name = "broker"
        queue.broker.endpoints.scheme = AddressScheme.IPv4
        queue.broker.endpoints.addresses.add(host=HOST, port=self.port)
        return response

    def SendMessage(self, request: Any, context: Any) -> Any:
        self.answering.wait(10)
        self.peers.add(context.peer())
        self.signatures.add(dict(context.invocation_metadata())["authorization"])
        response = SendMessageResponse()
        ids = [message.system_properties.message_id for message in request.messages]
        self.requests.append(ids)
        code = Code.ILLEGAL_MESSAGE_KEY if self.bad.intersection(ids) else self.answer(context)
        response.status.code, response.status.message = code, self.words
        response.entries.add(message_id=ids[0])
        return response

    def Telemetry(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for _ in requests:
            pass
        return iter(())
