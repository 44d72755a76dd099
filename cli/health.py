"""`duemq health`: what a probe of Docker or Kubernetes runs beside a server, every few seconds.

It has its own small reading of the command line and the settings: those of the other commands take ten times as long.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# The defaults of `listen`, `node.listen` and `relay.listen`.
LISTEN, NODE_LISTEN, RELAY_LISTEN = "127.0.0.1:8787", "127.0.0.1:8788", "127.0.0.1:8789"
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_MAX_BYTES = 64 << 10  # of an answer

_EXAMPLES = """examples:
  duemq health                                  a server, proxy, node or relay, as the settings say where it listens
  duemq health --live
  duemq health --listen 10.0.0.5:8788 --listen 10.0.0.5:8789      the processes of `duemq node --workers 2`
  duemq health --listen https://10.0.0.5:8788                     by TLS
"""


class Server(NamedTuple):
    """Where one listens (HOST:PORT), whether with TLS, and the files of the certificate that we show, or none."""

    listen: str
    tls: bool = False
    cert: str = ""
    key: str = ""


class Unhealthy(Exception):
    """Why, in a sentence."""


class _NobodyListens(Unhealthy):
    pass


def health(words: Sequence[str]) -> int:
    """Ask the server on this machine. `words`: the command line. The exit code: 0, or 1 and a line on stderr."""
    parser = argparse.ArgumentParser(
        prog="duemq health",
        description="Ask the server on this machine whether it is ready: exit code 0 if it is, 1 if not, with the "
        "reason. It asks directly, whatever proxy the environment names, and needs no key. The server's certificate "
        "is not checked; it is shown the one of DUEMQ_CERT_FILE and DUEMQ_KEY_FILE, and a node its own.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--live", action="store_true", help="only whether the process lives (/livez, not /readyz)")
    parser.add_argument(
        "--listen", action="append", metavar="[https://]HOST:PORT",
        help="where it listens; may be repeated, and then all must be well. Default: `listen` of the settings, and "
        "where nobody listens there, `node.listen`, then `relay.listen`",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="the settings file (TOML) of the server")
    parser.add_argument("--within", type=float, default=4.0, metavar="SECONDS", help="how long it may take (default 4)")
    options = parser.parse_args(words)
    path, until = "/livez" if options.live else "/readyz", time.monotonic() + options.within
    try:
        if options.listen:
            for address in options.listen:
                tls = address.startswith("https://")
                _ask(Server(address.removeprefix("https://"), tls, *_own_certificate()), path, until)
        else:
            _ask_first(_configured_servers(options.config), path, until)
    except Unhealthy as error:
        print(f"duemq: {error}", file=sys.stderr)
        return 1
    print("alive" if options.live else "ready")
    return 0


def _configured_servers(config: str | None) -> Iterator[Server]:
    """Servers by the environment or the file: `duemq serve` and `duemq proxy`, then nodes, then relays."""
    config = config or os.environ.get("DUEMQ_CONFIG")
    document: dict[str, Any] = {}
    if config:
        import tomllib

        try:
            with open(config, "rb") as file:
                document = tomllib.load(file)
        except (OSError, ValueError) as error:
            raise Unhealthy(f"the settings file {config} cannot be read: {error}") from error

    def setting(section: str, key: str) -> str:
        return os.environ.get(f"DUEMQ_{section}__{key}".upper()) or str(document.get(section, {}).get(key, ""))

    listen = os.environ.get("DUEMQ_LISTEN") or str(document.get("listen", LISTEN))
    yield Server(listen, bool(setting("http", "cert_file")), *_own_certificate())
    cert, key = setting("node", "cert_file"), setting("node", "key_file")
    yield Server(setting("node", "listen") or NODE_LISTEN, bool(cert), cert, key)
    yield Server(setting("relay", "listen") or RELAY_LISTEN)


def _own_certificate() -> tuple[str, str]:
    return os.environ.get("DUEMQ_CERT_FILE", ""), os.environ.get("DUEMQ_KEY_FILE", "")


def _ask_first(servers: Iterator[Server], path: str, until: float) -> None:
    """Ask the first server that is there."""
    silent = []
    for server in servers:
        try:
            _ask(server, path, until)
        except _NobodyListens:
            silent.append(server.listen)
        else:
            return
    raise Unhealthy(f"nobody listens at {', '.join(silent[:-1])} or {silent[-1]}: name the right address with --listen")


def _ask(server: Server, path: str, until: float) -> None:
    """Ask one server. Raises Unhealthy unless the answer is 200 by then."""
    host, _, port = server.listen.rpartition(":")
    host = _REACHED_AT.get(host, host)
    if not host or not port.isdecimal() or port == "0":
        raise Unhealthy(f"{server.listen} is not where a server can be reached: name HOST:PORT with --listen")
    address = f"{host}:{port}"
    answer = b""
    try:
        with _connect(server, (host.strip("[]"), int(port)), _remaining_s(until)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            while len(answer) < _MAX_BYTES and (part := connection.recv(_MAX_BYTES)):
                answer += part
                connection.settimeout(_remaining_s(until))
    except ConnectionRefusedError as error:
        raise _NobodyListens(f"nobody listens at {address}") from error
    except (TimeoutError, OSError) as error:
        raise Unhealthy(f"{address}{path} did not answer: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        reason = _reason(body) or head[:100].decode(errors="replace") or "nothing"
        raise Unhealthy(f"{address}{path} says: {reason}")


def _connect(server: Server, address: tuple[str, int], within_s: float) -> socket.socket:
    connection = socket.create_connection(address, within_s)
    if not server.tls:
        return connection
    import ssl  # 15 ms

    # It says nothing that is secret, and on this machine a server is seldom known by the name of its certificate.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connection:
        if server.cert:
            context.load_cert_chain(server.cert, server.key or None, password="")
        return context.wrap_socket(connection)


def _remaining_s(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _reason(body: bytes) -> str:
    """The detail of a problem document."""
    import json

    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")
