"""A server with a destination whose endpoint refuses the mails of one customer until it is mended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.server import Server, wait_for

CUSTOMER, ANSWER = "customer-4711", "mailbox customer-4711 is over quota"


class MailShop:
    """`mended`: set it, and the endpoint takes all."""

    def __init__(self, server: Server, endpoint: str) -> None:
        self.server, self.endpoint, self.key = server, endpoint, ""
        self.mended = threading.Event()

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        key = key or self.key
        headers = {"X-API-Key": key} if key else {}
        answer = self.server.http.request(method, path, json=body, headers=headers)
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def declare(self, name: str, *topics: str, retry: Any = None, **fields: Any) -> None:
        retry = retry or {"kind": "delays", "delays": ["20ms", "30ms"]}
        self.call("POST", "/v1/destinations", {
            "name": name, "url": self.endpoint, "topics": list(topics), "retry": retry, **fields,
        })  # fmt: skip

    def send(self, topic: str, key: str | None = CUSTOMER, name: str = "", **fields: Any) -> str:
        """The id of a message that went through a shard."""
        message = {"topic": topic, "payload": '{"to": "anna@example.com"}', "deliver_after": "1ms"} | fields
        message |= {} if key is None else {"key": key}
        method, path = ("PUT", f"/v1/messages/{name}") if name else ("POST", "/v1/messages")
        id_: str = self.call(method, path, message)["id"]
        return id_

    def story(self, id_: str, key: str = "") -> Any:
        return self.call("GET", f"/v1/messages/{id_}/story", key=key)

    def reader(self, id_: str, group: str, state: str) -> Any:
        """The part of one reader, once it is in this state."""
        found: list[Any] = []

        def there() -> bool:
            readers = {one["group"]: one for one in self.story(id_)["readers"]}
            found[:] = [readers[group]] if group in readers else []
            return bool(found) and found[0]["state"] == state

        wait_for(there, f"{group} to be {state}: {found}", 120)
        return found[0]


@contextmanager
def mail_shop(folder: Path, *options: str) -> Iterator[MailShop]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            refused = self.headers.get("duemq-key") == CUSTOMER and not shop.mended.is_set()
            body = ANSWER.encode() if refused else b"taken"
            self.send_response(500 if refused else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    networks = "relay.private_networks=127.0.0.0/8"
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as endpoint,
        Server(folder / "data", "--set", networks, *options) as server,
    ):
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        shop = MailShop(server, f"http://127.0.0.1:{endpoint.server_address[1]}/")
        server.start()
        try:
            yield shop
        finally:
            endpoint.shutdown()
