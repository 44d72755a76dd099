"""`duemq health`: the probe that Docker or Kubernetes runs next to a server, every few seconds.

It parses the command line and the settings itself: the other commands' parsers take ten times as long.
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
_MAX_BYTES = 64 << 10  # in an answer

_EXAMPLES = """examples:
  duemq health                                  a server, proxy, node or relay, at the address in the settings
  duemq health --live
  duemq health --listen 10.0.0.5:8788 --listen 10.0.0.5:8789      the processes of `duemq node --workers 2`
  duemq health --listen https://10.0.0.5:8788                     by TLS
"""


class ServerAddress(NamedTuple):
    """Address (HOST:PORT), whether it uses TLS, and the files with the certificate to present, if any."""

    listen: str
    tls: bool = False
    cert: str = ""
    key: str = ""


class Unhealthy(Exception):
    """A server is not healthy. The text of the exception is the reason, in a sentence."""


class _NobodyListens(Unhealthy):
    pass


def health(words: Sequence[str]) -> int:
    """Ask the server on this machine. `words`: the command's arguments. Returns the exit code: 0, or 1 with a line on
    stderr."""
    parser = argparse.ArgumentParser(
        prog="duemq health",
        description="Ask the server on this machine whether it is ready: exit code 0 if it is, 1 if not, with the "
        "reason. It connects directly, without the environment's proxies, and needs no key. The server's certificate "
        "is not checked; it is sent the one in DUEMQ_CERT_FILE and DUEMQ_KEY_FILE, a node its own.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--live", action="store_true", help="only whether the process is alive (/livez, not /readyz)")
    parser.add_argument(
        "--listen", action="append", metavar="[https://]HOST:PORT",
        help="its address; may be repeated, and then all must be healthy. Default: `listen` in the settings; "
        "if no server listens there, `node.listen`, then `relay.listen`",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="the settings file (TOML) of the server")
    parser.add_argument("--within", type=float, default=4.0, metavar="SECONDS", help="time limit (default 4)")
    options = parser.parse_args(words)
    path, until = "/livez" if options.live else "/readyz", time.monotonic() + options.within
    try:
        if options.listen:
            for address in options.listen:
                tls = address.startswith("https://")
                _ask(ServerAddress(address.removeprefix("https://"), tls, *_own_certificate()), path, until)
        else:
            _ask_first(_configured_servers(options.config), path, until)
    except Unhealthy as error:
        print(f"duemq: {error}", file=sys.stderr)
        return 1
    print("alive" if options.live else "ready")
    return 0


def _configured_servers(config: str | None) -> Iterator[ServerAddress]:
    """The servers in the environment or the file: `duemq serve` and `duemq proxy`, then nodes, then relays."""
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
    yield ServerAddress(listen, bool(setting("http", "cert_file")), *_own_certificate())
    cert, key = setting("node", "cert_file"), setting("node", "key_file")
    yield ServerAddress(setting("node", "listen") or NODE_LISTEN, bool(cert), cert, key)
    yield ServerAddress(setting("relay", "listen") or RELAY_LISTEN)


def _own_certificate() -> tuple[str, str]:
    return os.environ.get("DUEMQ_CERT_FILE", ""), os.environ.get("DUEMQ_KEY_FILE", "")


def _ask_first(servers: Iterator[ServerAddress], path: str, until: float) -> None:
    """Ask the first server that listens."""
    silent = []
    for server in servers:
        try:
            _ask(server, path, until)
        except _NobodyListens:
            silent.append(server.listen)
        else:
            return
    raise Unhealthy(f"no server listens at {', '.join(silent[:-1])} or {silent[-1]}: give the address with --listen")


def _ask(server: ServerAddress, path: str, until: float) -> None:
    """Ask one server. Raises Unhealthy unless it answers with 200 in time."""
    host, _, port = server.listen.rpartition(":")
    host = _REACHED_AT.get(host, host)
    if not host or not port.isdecimal() or port == "0":
        raise Unhealthy(f"{server.listen} is not a server's address: give HOST:PORT with --listen")
    address = f"{host}:{port}"
    answer = b""
    try:
        with _connect(server, (host.strip("[]"), int(port)), _remaining_s(until)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            while len(answer) < _MAX_BYTES and (part := connection.recv(_MAX_BYTES)):
                answer += part
                connection.settimeout(_remaining_s(until))
    except ConnectionRefusedError as error:
        raise _NobodyListens(f"no server listens at {address}") from error
    except (TimeoutError, OSError) as error:
        raise Unhealthy(f"{address}{path} did not answer: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        reason = _reason(body) or head[:100].decode(errors="replace") or "nothing"
        raise Unhealthy(f"{address}{path} says: {reason}")


def _connect(server: ServerAddress, address: tuple[str, int], within_s: float) -> socket.socket:
    connection = socket.create_connection(address, within_s)
    if not server.tls:
        return connection
    import ssl  # takes 15 ms

    # The certificate is not checked: the request has no secrets, and on this machine a server is seldom addressed by
    # the name in its certificate.
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
