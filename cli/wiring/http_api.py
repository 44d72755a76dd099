"""Builds the HTTP API in front of a backend from the settings."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from duemq.cli.settings.settings import Settings
from duemq.cli.tracing.open import gateway_for
from duemq.cli.wiring.import_policy import import_policy
from duemq.cli.wiring.parts import is_loopback
from duemq.cli.wiring.relay.relay_of_process import outlet_opener
from duemq.cli.wiring.relay.settings_destinations import SettingsDestinations
from duemq.cli.wiring.relay.trial import send_test
from duemq.cluster.admin.administration import Administration
from duemq.cluster.backend import Backend
from duemq.proxy.app import Application, create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.shard_router import router_of
from duemq.proxy.jobs.runner import JobRunner
from duemq.proxy.relay_access import Ended, FiguresOf, LeasesOf, RelayAccess, none_at_work
from duemq.proxy.request.ingress import Ingress
from duemq.web.probes import ReadinessCollector

if TYPE_CHECKING:  # an extra
    from duemq.cluster.tracing.tracing import Tracing

log = logging.getLogger(__name__)

CONSOLE = "/console/"
"""The path of the pages that `http_api` serves."""


class HttpApi(NamedTuple):
    """`jobs`: runs bulk jobs. `declared`: declares the destinations in the settings."""

    app: Application
    gateway: Gateway
    jobs: JobRunner
    declared: SettingsDestinations


def http_api(
    settings: Settings,
    backend: Backend,
    metrics: CollectorRegistry,
    closing: asyncio.Event,
    admin: Administration,
    tracing: Tracing | None = None,
    figures: FiguresOf = lambda name: None,
    ended: Ended = none_at_work,
    leases: LeasesOf | None = None,
) -> HttpApi:
    """The HTTP API in front of a backend, and its background work.

    `closing`, `admin`: see `create_app`. `tracing`: None means no tracing. `figures`, `ended`, `leases`: see
    `FiguresOf`, `Ended` and `LeasesOf`. Logs whether API keys are required.
    """
    keys = len(settings.http.api_keys)
    if keys or settings.http.access == "keys" or settings.login.issuer:
        log.info("API keys are required; %d are set", keys, extra={"action": "http.keys", "keys": keys})
    else:
        log.log(
            logging.INFO if is_loopback(settings.host) else logging.WARNING,
            "no API keys are set (http.api_keys): until one is created (duemq key add), everyone with access to %s may "
            "send, read and cancel",
            settings.listen,
            extra={"action": "http.keys", "keys": 0},
        )
    router = router_of(settings.proxy.selection, backend.shards)
    gateway = gateway_for(backend, router, settings.http.answer_timeout_ms / 1000, tracing)
    metrics.register(ReadinessCollector(gateway.readiness))
    lost = Counter(
        "duemq_trail_lost_entries", "Entries of the audit trail that could not be written.", registry=metrics
    )
    admin.trail.on_lost = lost.inc
    ingress = Ingress(settings.ingress_limits(), backend.why_clock_out, lambda: admin.destinations.by_name)
    http = settings.http.model_copy(update={"hosts": (*settings.http.hosts, settings.host)})
    app = create_app(
        gateway, ingress, http, metrics, backend.clock, closing, import_policy(settings), admin, settings.login,
        settings.console,
        RelayAccess(partial(send_test, open_with=outlet_opener(settings)), figures, ended, leases),
    )  # fmt: skip
    app.admission.on_stranger_refused = Counter(
        "duemq_strangers_refused",
        "Requests without a key, refused because too many were in flight or waited.",
        registry=metrics,
    ).inc
    app.consumer_names.on_refused = Counter(
        "duemq_consumer_names_refused", "Cursors refused because the caller has too many names.", registry=metrics
    ).inc
    app.admission.on_body_ended = Counter(
        "duemq_half_sent_bodies", "Bodies that timed out, or were dropped for other requests.", registry=metrics
    ).inc
    jobs = JobRunner(admin.jobs, gateway, backend.clock, settings.topics.max_redrives, admin.keys)
    declared = SettingsDestinations(settings.destinations, admin, lambda: gateway.bus, ended)
    return HttpApi(app, gateway, jobs, declared)
