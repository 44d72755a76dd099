"""Endpoints that a proxy and a node share: cluster, liveness, readiness and metrics.

Liveness and readiness need no key: they show only shard numbers, states, duemq's own topics and the reasons in
`model/readiness.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from duemq import __version__
from duemq.model.readiness import SENTENCES, Readiness, Reason, ShardTrouble
from duemq.web.body import header
from duemq.web.connection.connections import DRAINING
from duemq.web.json_response import JsonResponse
from duemq.web.problem import problem, problem_response


class ProbeReport(Protocol):
    """The status of a process, from its gateway or from a node's backend."""

    def cluster(self) -> dict[str, Any]: ...
    def readiness(self) -> Readiness: ...
    def stuck(self) -> Mapping[int, float]:
        """The stuck shards, and how long (s) each has been stuck."""
        ...


class ProbeSource(Protocol):
    """What the status endpoints of a process show: its report and its metrics."""

    @property
    def gateway(self) -> ProbeReport: ...
    @property
    def registry(self) -> CollectorRegistry: ...


async def cluster(service: ProbeSource, request: Request) -> Response:
    return JsonResponse(service.gateway.cluster())


async def livez(service: ProbeSource, request: Request) -> Response:
    stuck = service.gateway.stuck()
    if not stuck:
        return JsonResponse({"status": "ok"})
    sentences = (f"shard {number} has been stuck for {seconds:.0f} s" for number, seconds in sorted(stuck.items()))
    shards = {str(number): {"reason": Reason.STUCK, "seconds": int(seconds)} for number, seconds in stuck.items()}
    return problem_response(problem("stuck", "; ".join(sentences), shards=shards))


async def healthz(service: ProbeSource, request: Request) -> Response:
    return await livez(service, request)


async def readyz(service: ProbeSource, request: Request) -> Response:
    if DRAINING in request.scope:
        detail = "the server is stopping: send new requests to another one"
        return problem_response(problem("closing", detail, reason=Reason.STOPPING, shards={}))
    return ready_response(service.gateway.readiness())


def ready_response(readiness: Readiness) -> Response:
    shards = {str(number): _shown(trouble) for number, trouble in sorted(readiness.shards.items())}
    if readiness.reason is None:
        return JsonResponse({"status": "ready", "shards": shards, "topics": readiness.topics})
    document = problem(
        "unavailable", readiness.sentence, reason=readiness.reason, shards=shards, topics=readiness.topics
    )
    return problem_response(document, {"Retry-After": "1"})


def _shown(trouble: ShardTrouble) -> dict[str, Any]:
    shown = {"state": trouble.state, "reason": trouble.reason, "detail": SENTENCES[trouble.reason]}
    return shown if trouble.since is None else shown | {"producer": trouble.producer, "since_ms": trouble.since}


async def metrics(service: ProbeSource, request: Request) -> Response:
    snapshot = _MetricSnapshot(service.registry)
    try:
        encode, media_type = choose_encoder(header(request, b"accept") or "")
        text = await asyncio.to_thread(encode, snapshot)  # 1,000 topics make 20,000 lines
    except (TypeError, ValueError):  # the version in the Accept header is not a number
        text, media_type = await asyncio.to_thread(generate_latest, snapshot), CONTENT_TYPE_PLAIN_0_0_4
    return Response(text, headers={"Content-Type": media_type, "Cache-Control": "no-store"})


class _MetricSnapshot(Collector):
    """The metrics of a registry at one moment, to encode later."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterable[Metric]:
        return self._families


class ReadinessCollector(Collector):
    """Metrics of the process's readiness and version, made at each scrape."""

    def __init__(self, readiness: Callable[[], Readiness]) -> None:
        self._readiness = readiness

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        readiness = self._readiness()
        ready = readiness.reason is None
        yield GaugeMetricFamily("duemq_ready", "1 while messages are accepted and delivered, as /readyz says", ready)
        topics = GaugeMetricFamily(
            "duemq_own_topic_unusable", "1 for each topic of duemq's own that /readyz names", labels=["topic"]
        )
        for topic in readiness.topics:
            topics.add_metric([topic], 1)
        yield topics
        build = GaugeMetricFamily("duemq_build_info", "1, with the version that runs", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
