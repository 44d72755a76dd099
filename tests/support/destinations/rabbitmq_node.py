"""A real RabbitMQ, of Debian's packages, that can be stopped, killed and started on its data again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process, wait_for
from tests.support.destinations.arrived import Arrived
from tests.support.destinations.debian import unpacked
from tests.support.destinations.server_node import ServerNode
from tests.support.tls.certificates import Authority

# What rabbitmq-server depends on, without what every Debian has.
_ERLANG = (
    "base", "asn1", "crypto", "public-key", "mnesia", "runtime-tools", "ssl", "eldap", "ftp", "tftp", "inets", "snmp",
    "os-mon", "parsetools", "syntax-tools", "tools", "xmerl",
)  # fmt: skip
_PACKAGES = ("rabbitmq-server", *(f"erlang-{part}" for part in _ERLANG))
_NODE = "duemq@localhost"
_READY_WITHIN_S = 300.0
_DUMP_BATCH = 2000  # an answer of 10,000 takes ten times as long as one of 2,000
_DUMP_WITHIN_S = 300.0

# Debian's own has the path of an installed Erlang in it.
_ERL = """#!/bin/sh
export ROOTDIR='{root}' BINDIR='{binaries}' EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""


class RabbitMQNode(ServerNode):
    """One node with quorum queues and streams, on the loopback alone; its data outlives it.

    `url`, and `tls_url` for those who trust `ca`: of the default virtual host. `cert`, `key`: its own, which a client
    may show, too. `stream_port`, `stream_tls_port`: of the stream protocol. `process`: of the node, to be paused and
    weighed. `settings`: more of rabbitmq.conf. Raises NotAvailable where Debian's packages cannot be had.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder, self._settings = folder.absolute(), settings or {}
        self._tls = Authority.make(self.folder).issue("node")
        self.ca, self.cert, self.key = map(Path, (self._tls.ca, self._tls.cert, self._tls.key))
        self._files = unpacked(_PACKAGES)
        (self._home,) = self._files.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")
        (self._binaries,) = self._files.glob("usr/lib/erlang/erts-*/bin")
        self.port, self.tls_port, self.stream_port, self.stream_tls_port, self._http_port = (
            free_port() for _ in range(5)
        )
        self._peer_port, self._epmd_port = free_port(), free_port()
        self.url = f"amqp://guest:guest@{HOST}:{self.port}/"
        self.tls_url = f"amqps://guest:guest@{HOST}:{self.tls_port}/"
        log = self.folder / "server.log"
        # Without an epmd of its own, Erlang would leave one behind that nobody ends.
        epmd = [str(self._binaries / "epmd"), "-port", str(self._epmd_port), "-address", HOST]
        self._epmd = Process("epmd", epmd, self.folder / "epmd.log")
        server = str(self._home / "sbin" / "rabbitmq-server")
        self.process = Process("rabbitmq", [server], log, environment=self._environment())

    def start(self) -> None:
        self._write_settings()
        self._epmd.start()
        self._epmd.until(lambda: is_open(self._epmd_port), _READY_WITHIN_S)
        self.process.start()
        self.process.until(lambda: is_open(self.port), _READY_WITHIN_S)  # opened when all else is done

    def close(self) -> None:
        super().close()
        self._epmd.kill()

    def until_on_disk(self, queue: str) -> None:
        """Wait for up to some 3 s after a quorum queue of the default virtual host was declared.

        RabbitMQ 3.10 writes the queue's name late and unsynced: killed before, it forgets what the queue confirmed.
        """
        self._until_named("quorum", f"%2F_{queue}")

    def until_streams_on_disk(self) -> None:
        """The same after the first stream was declared: killed before, no stream has a leader ever after."""
        self._until_named("coordination", "rabbit_stream_coordinator")

    def _until_named(self, system: str, name: str) -> None:
        names = self.folder / "data" / _NODE / system / _NODE / "names.dets"
        wait_for(lambda: name.encode() in names.read_bytes(), f"{name} to be on disk", _READY_WITHIN_S)

    def dump(self, queue: str) -> list[Arrived]:
        """All messages that are ready in a classic or quorum queue, taken out by RabbitMQ's own rabbitmqadmin.

        Headers are as JSON has them. Raises subprocess.CalledProcessError: there is no such queue.
        """
        arrived: list[Arrived] = []
        while batch := self._take(queue):
            for message in batch:
                properties = message["properties"] or {}  # an empty list where there are none
                headers = properties.pop("headers", {})
                properties |= {name: message[name] for name in ("exchange", "routing_key", "redelivered")}
                properties["deliveries"] = headers.pop("x-delivery-count", None)  # a quorum queue puts it there
                arrived.append(Arrived(b64decode(message["payload"]), headers, properties))
        return arrived

    def control(self, *arguments: str) -> str:
        """What rabbitmqctl answers. Raises subprocess.CalledProcessError."""
        command = [str(self._home / "sbin" / "rabbitmqctl"), *arguments]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DUMP_WITHIN_S, env=self._environment()
        )
        return done.stdout

    def add_virtual_host(self, name: str) -> str:
        """Its URL: a name that needs no quoting. There are no queues in it."""
        self.control("add_vhost", name)
        self.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return f"{self.url}{name}"

    def _take(self, queue: str) -> Any:
        command = [
            sys.executable, str(self._files / "usr" / "bin" / "rabbitmqadmin"), "-H", HOST, "-P", str(self._http_port),
            "-f", "raw_json", "get", f"queue={queue}", f"count={_DUMP_BATCH}", "ackmode=ack_requeue_false",
            "encoding=base64",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, timeout=_DUMP_WITHIN_S)
        return json.loads(done.stdout)

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "HOME": str(folder),  # of the cookie
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,  # not that of an installed RabbitMQ
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of waiting for it
        }

    def _write_settings(self) -> None:
        """And all else that it wants to find in its folder."""
        erl = self.folder / "bin" / "erl"
        erl.parent.mkdir(parents=True, exist_ok=True)
        erl.write_text(_ERL.format(root=self._binaries.parents[1], binaries=self._binaries))
        erl.chmod(0o755)
        plugins = "rabbitmq_management,rabbitmq_stream,rabbitmq_auth_mechanism_ssl"
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        settings = {
            "listeners.tcp.default": f"{HOST}:{self.port}",
            "listeners.ssl.default": f"{HOST}:{self.tls_port}",
            "ssl_options.cacertfile": self._tls.ca,
            "ssl_options.certfile": self._tls.cert,
            "ssl_options.keyfile": self._tls.key,
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",  # a client may show a certificate, and need not
            "stream.listeners.tcp.1": f"{HOST}:{self.stream_port}",
            "stream.listeners.ssl.1": f"{HOST}:{self.stream_tls_port}",
            "stream.advertised_host": HOST,
            "stream.advertised_port": self.stream_port,
            "stream.advertised_tls_port": self.stream_tls_port,
            "management.tcp.ip": HOST,
            "management.tcp.port": self._http_port,
            "management_agent.disable_metrics_collector": "true",  # rabbitmqadmin reads messages, not figures
            "raft.wal_max_size_bytes": 64 << 20,  # 512 MiB by default, held in memory, too
            "log.console.level": "warning",
            **self._settings,
        }
        lines = (f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
