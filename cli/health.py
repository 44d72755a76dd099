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
from typing import Any

LISTEN, NODE_LISTEN = "127.0.0.1:8787", "127.0.0.1:8788"  # the defaults of `listen` and `node.listen`
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_MAX_BYTES = 64 << 10  # of an answer

_EXAMPLES = """examples:
  duemq health                                  a server, proxy or node, as the settings say where it listens
  duemq health --live
  duemq health --listen 10.0.0.5:8788 --listen 10.0.0.5:8789      the processes of `duemq node --workers 2`
"""


class Unhealthy(Exception):
    """Why, in a sentence."""


class _NobodyListens(Unhealthy):
    pass


def health(words: Sequence[str]) -> int:
    """Ask the server on this machine. `words`: the command line. The exit code: 0, or 1 and a line on stderr."""
    parser = argparse.ArgumentParser(
        prog="duemq health",
        description="Ask the server on this machine whether it is ready: exit code 0 if it is, 1 if not, with the "
        "reason. It asks directly, whatever proxy the environment names, and needs no key.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--live", action="store_true", help="only whether the process lives (/livez, not /readyz)")
    parser.add_argument(
        "--listen", action="append", metavar="HOST:PORT",
        help="where it listens; may be repeated, and then all must be well. Default: `listen` of the settings, and "
        "where nobody listens there, `node.listen`",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="the settings file (TOML) of the server")
    parser.add_argument("--within", type=float, default=4.0, metavar="SECONDS", help="how long it may take (default 4)")
    options = parser.parse_args(words)
    path, until = "/livez" if options.live else "/readyz", time.monotonic() + options.within
    try:
        if options.listen:
            for address in options.listen:
                _ask(address, path, until)
        else:
            _ask_first(_configured_addresses(options.config), path, until)
    except Unhealthy as error:
        print(f"duemq: {error}", file=sys.stderr)
        return 1
    print("alive" if options.live else "ready")
    return 0


def _configured_addresses(config: str | None) -> Iterator[str]:
    """Where servers listen by the environment or the file: `duemq serve` and `duemq proxy`, then `duemq node`."""
    config = config or os.environ.get("DUEMQ_CONFIG")
    document: dict[str, Any] = {}
    if config:
        import tomllib

        try:
            with open(config, "rb") as file:
                document = tomllib.load(file)
        except (OSError, ValueError) as error:
            raise Unhealthy(f"the settings file {config} cannot be read: {error}") from error
    node = document.get("node", {})
    yield os.environ.get("DUEMQ_LISTEN") or str(document.get("listen", LISTEN))
    yield os.environ.get("DUEMQ_NODE__LISTEN") or str(node.get("listen", NODE_LISTEN))


def _ask_first(addresses: Iterator[str], path: str, until: float) -> None:
    """Ask the first address at which somebody listens."""
    silent = []
    for address in addresses:
        try:
            _ask(address, path, until)
        except _NobodyListens:
            silent.append(address)
        else:
            return
    raise Unhealthy(f"nobody listens at {' or '.join(silent)}: name the right address with --listen")


def _ask(listen: str, path: str, until: float) -> None:
    """Ask one server. Raises Unhealthy unless the answer is 200 by then."""
    host, _, port = listen.rpartition(":")
    host = _REACHED_AT.get(host, host)
    if not host or not port.isdecimal() or port == "0":
        raise Unhealthy(f"{listen} is not where a server can be reached: name HOST:PORT with --listen")
    address = f"{host}:{port}"
    answer = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _remaining_s(until)) as connection:
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
