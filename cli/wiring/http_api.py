"""From settings to the HTTP API, in front of a backend."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.import_policy import import_policy
from duemq.cluster.backend import Backend
from duemq.model.errors import BadConfig
from duemq.proxy.app import create_app
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.shard_router import selection_of
from duemq.proxy.request.ingress import Ingress

log = logging.getLogger(__name__)


def http_api(settings: Settings, backend: Backend, metrics: CollectorRegistry, closing: asyncio.Event) -> ASGIApp:
    """The HTTP API in front of a backend. `closing`: see `create_app`. The log says who may use it."""
    if keys := len(settings.http.api_keys):
        log.info("API keys are asked for; %d are set", keys, extra={"action": "http.keys", "keys": keys})
    else:
        log.log(
            logging.INFO if is_loopback(settings.host) else logging.WARNING,
            "no API keys are set (http.api_keys): everybody who reaches %s may send, read and cancel",
            settings.listen,
            extra={"action": "http.keys", "keys": 0},
        )
    selection = selection_of(settings.proxy.selection, backend.shards)
    gateway = CommandGateway(backend, selection, settings.http.answer_timeout_ms / 1000)
    ingress = Ingress(settings.ingress_limits(), backend.why_clock_out)
    http = settings.http.model_copy(update={"hosts": (*settings.http.hosts, settings.host)})
    return create_app(gateway, ingress, http, metrics, backend.clock, closing, import_policy(settings))


def check_access(listen: str, secret_key: str, *, guarded: bool, opened: bool) -> None:
    """Refuse to serve everybody who reaches this machine. Raises BadConfig.

    `guarded`: callers have to show a secret, which the setting `secret_key` holds. `opened`: by http.open.
    """
    if guarded or opened or is_loopback(listen.rpartition(":")[0].strip("[]")):
        return
    raise BadConfig(
        f"{secret_key} is not set, and {listen} can be reached from other machines: everybody there could send, read "
        f"and cancel. Set {secret_key}, listen on 127.0.0.1, or, where something else keeps strangers away, set "
        "http.open = true"
    )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
