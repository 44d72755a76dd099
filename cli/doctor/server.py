"""Checks the server that listens on this machine, if there is one: that it works, is ready, and has this version."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator

import httpx

from duemq import __version__
from duemq.cli.doctor.finding import Finding, Role, error, ok, warning
from duemq.cli.settings.settings import Settings

_SUBJECT = "server"
_WITHIN_S = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def check_server(settings: Settings, role: Role) -> Iterator[Finding]:
    own = settings.node if role is Role.NODE else settings.http
    listen = {Role.NODE: settings.node.listen, Role.RELAY: settings.relay.listen}.get(role, settings.listen)
    host, _, port = listen.rpartition(":")
    secure = bool(own.cert_file) and role is not Role.RELAY
    url = f"http{'s' if secure else ''}://{_EVERYWHERE.get(host, host)}:{port}"
    try:
        trust = _own_certificate(own.cert_file, own.key_file) if secure else True
        with httpx.Client(base_url=url, timeout=_WITHIN_S, trust_env=False, verify=trust) as http:
            live, ready = http.get("/livez"), http.get("/readyz")
            metrics = http.get("/metrics", headers=_key(settings))
    except httpx.ConnectError:
        yield ok(_SUBJECT, f"no server listens on {listen}")
        return
    except (httpx.HTTPError, OSError) as failed:
        yield error(_SUBJECT, f"{listen} does not answer: {failed!r}", "check its log; restart it")
        return
    yield from judge_server(listen, live, ready, metrics)


def _key(settings: Settings) -> dict[str, str]:
    """The key for `/metrics`, if it is known here."""
    key = os.environ.get("DUEMQ_API_KEY") or next(iter(settings.http.api_keys), "")
    return {"X-API-Key": key} if key else {}


def _own_certificate(cert: str, key: str) -> ssl.SSLContext:
    """A context that presents the server's own certificate, if the server asks for one. Other checks judge it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cert, key or None)
    return context


def judge_server(
    listen: str, live: httpx.Response, ready: httpx.Response, metrics: httpx.Response
) -> Iterator[Finding]:
    if live.status_code != 200:
        yield error(_SUBJECT, f"{listen}: {_detail(live)}", "keep its log, and restart it")
    if ready.status_code != 200:
        yield error(
            _SUBJECT, f"{listen} is not ready: {_detail(ready)}", "docs/operate/operations.md#health-and-readiness"
        )
    elif shards := ready.json().get("shards"):
        yield warning(
            _SUBJECT,
            f"{listen} is ready, except for shards {', '.join(shards)}: {next(iter(shards.values()))['detail']}",
            "docs/operate/operations.md#health-and-readiness",
        )
    else:
        yield ok(_SUBJECT, f"{listen} is ready")
    if metrics.status_code in (401, 403):
        yield ok(_SUBJECT, f"{listen}: /metrics, which has its version, needs a key: set DUEMQ_API_KEY to check it")
    runs = re.search(r'^duemq_build_info\{version="([^"]*)"\}', metrics.text, re.MULTILINE)
    if runs is not None and runs[1] != __version__:
        yield warning(_SUBJECT, f"{listen} runs duemq {runs[1]}, installed is {__version__}", "restart it")
    for name in re.findall(r'^duemq_relay_troubled\{destination="([^"]*)"\} 1(?:\.0)?$', metrics.text, re.MULTILINE):
        yield warning(
            "destinations", f"{name} takes no messages", f"duemq destination get {name}: fix the reported cause"
        )


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"it answers {answer.status_code}"
