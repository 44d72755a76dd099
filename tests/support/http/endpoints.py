"""Endpoints of destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received: Counter[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.received[self.headers["duemq-id"]] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests in a thread. The URL of the endpoint."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, name="endpoint")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def counting_endpoint() -> Iterator[tuple[str, Counter[str]]]:
    """Accepts all messages. Its URL, and how often each message arrived, by its duemq-id."""
    received: Counter[str] = Counter()
    with serving(type("OneEndpoint", (_Endpoint,), {"received": received})) as url:
        yield url, received
