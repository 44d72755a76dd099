"""Trace headers pass through a real server untouched, and its spans reach a collector."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.server import Server, wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {
    "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    "tracestate": "vendor=a:b,other=1",
    "baggage": "user=alice%20smith;p=1, region = eu",
}
WITHOUT_EXTRA = (
    sys.executable, "-P", "-c",
    "import sys; sys.modules['opentelemetry'] = None; from duemq.cli.main import main; sys.exit(main())",
)  # fmt: skip


class Collector:
    """Takes spans, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in request.resource_spans:
                    names = {one.key: one.value.string_value for one in resource.resource.attributes}
                    collector.services.add(names["service.name"])
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> Any:
        """The one span of this name, once it is there."""
        wait_for(lambda: any(span.name == name for span in self.spans), f"a span {name}")
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.close()


def passes(server: Server, topic: str) -> str:
    """The id of a message whose headers its consumer got as they were sent."""
    id_ = server.send(topic, headers=HEADERS, deliver_after="50ms")
    wait_for(lambda: server.records(topic), "the delivery")
    (record,) = server.records(topic)
    assert {name: record["headers"].get(name) for name in HEADERS} == HEADERS
    return id_


@pytest.mark.parametrize("extra", [True, False], ids=["with the extra", "without"])
def test_headers_pass_untouched_where_nothing_is_traced(extra: bool, new_server: Callable[..., Server]) -> None:
    server = new_server()
    if not extra:
        server.command = list(WITHOUT_EXTRA)
    passes(server.start(), "orders")


def test_spans_of_sampled_messages_reach_the_collector(new_server: Callable[..., Server], collector: Collector) -> None:
    server = new_server("--set", "tracing.enabled=true")
    server.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server.start()
    id_ = passes(server, "orders")
    server.send("untraced", deliver_after="10ms")
    schedule, deliver = collector.named("schedule orders"), collector.named("deliver orders")
    assert schedule.trace_id.hex() == TRACE and schedule.parent_span_id.hex() == "00f067aa0ba902b7"
    assert not deliver.parent_span_id and deliver.trace_id.hex() != TRACE
    assert [link.trace_id.hex() for link in deliver.links] == [TRACE]
    values = {one.key: one.value.string_value for one in deliver.attributes}
    assert values["messaging.message.id"] == id_ and values["messaging.destination.name"] == "orders"
    assert deliver.start_time_unix_nano <= deliver.end_time_unix_nano
    later = server.send("later", deliver_after="1h")
    caller = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
    assert httpx.delete(f"{server.url}/v1/messages/{later}", headers=caller, timeout=300).status_code == 200
    cancel = collector.named("cancel")
    assert (cancel.trace_id.hex(), cancel.parent_span_id.hex()) == ("c" * 32, "d" * 16)
    assert server.stop() == 0
    assert {span.name for span in collector.spans} == {"schedule orders", "deliver orders", "cancel"}
    assert collector.services == {"duemq-serve"}


def test_headers_of_messages_beyond_the_budget_pass_untouched(
    new_server: Callable[..., Server], collector: Collector
) -> None:
    server = new_server("--set", "tracing.enabled=true", "--set", "tracing.spans_per_s=1")
    server.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server.start()
    for _ in range(20):
        server.send("orders", headers=HEADERS, deliver_after="50ms")
    wait_for(lambda: len(server.records("orders")) == 20, "the deliveries")
    for record in server.records("orders"):
        assert {name: record["headers"].get(name) for name in HEADERS} == HEADERS
    lines = server.call("GET", "/metrics").text.splitlines()
    name = "duemq_untraced_messages_total{"
    untraced = sum(float(line.split()[1]) for line in lines if line.startswith(name))
    assert server.stop() == 0
    assert 0 < untraced == 40 - len(collector.spans)


def test_a_collector_that_is_away_holds_up_nothing(new_server: Callable[..., Server]) -> None:
    server = new_server("--set", "tracing.enabled=true")
    server.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    passes(server.start(), "orders")
    assert server.stop(within_s=60) == 0


def test_without_the_extra_tracing_says_what_to_install(new_server: Callable[..., Server]) -> None:
    server = new_server("--set", "tracing.enabled=true")
    server.command = list(WITHOUT_EXTRA)
    server.spawn()
    assert server.process.wait(300) == 1
    assert "pip install 'duemq[otel]'" in server.log
