"""A real RocketMQ 5 on this machine: a name server, and a broker with the gRPC proxy in one process.

Acknowledged data need not be synced to disk, which is RocketMQ's default: the broker writes into mapped files, so that
a killed process loses nothing; a killed machine may.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc

from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.jars import jars
from duemq.dev.servers.java import command
from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process, wait_for
from duemq.dev.servers.running import RunningServer
from tests.support.rocketmq.client import AddressScheme, Code, MessagingServiceStub, QueryRouteRequest
from tests.support.rocketmq.offsets import count
from tests.support.rocketmq.security import Open
from tests.support.rocketmq.stored import Stored, stored

JARS = Path(__file__).with_name("jars.txt")
_RULES = Path(__file__).with_name("rules.btm")
_READY_WITHIN_S = 300.0  # a process that ends is noticed at once; this is for machines that are very busy
_CLUSTER = "tests"
_TOOLS = "org.apache.rocketmq.tools.command.MQAdminStartup"


class RocketMQServer(RunningServer):
    """`endpoint`: HOST:PORT of the proxy.

    `folder`: settings, logs and data; a killed server can be restarted on it. `extra`: more lines of broker.conf.
    `security`: none by default. Raises LocalError; NotAvailable if there is neither Java nor a way to fetch the jars.
    """

    def __init__(
        self, folder: Path, *, heap_mib: int = 512, extra: Mapping[str, str] | None = None,
        security: Open | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.security = folder.absolute(), security or Open()
        self.name_server_port, self.broker_port = free_port(), _broker_port()
        self._proxy_port, self._remoting_port = free_port(), free_port()
        self.endpoint = f"{HOST}:{self._proxy_port}"
        self._name_server_address = f"{HOST}:{self.name_server_port}"
        self._extra = dict(extra or {})
        self._topics: dict[str, int] = {}
        byteman = next(jars(None, JARS).glob("byteman-*.jar"))
        self.name_server = self._process(
            "name-server", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self.folder / "name-server.conf"),
            heap_mib=64,
        )  # fmt: skip
        self.broker = self._process(
            "broker", "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(self.folder / "proxy.json"),
            heap_mib=heap_mib, options=(*self.security.java_options, f"-javaagent:{byteman}=script:{_RULES}"),
        )  # fmt: skip

    def start(self) -> None:
        """Start what does not run; come back when the proxy serves, with the route of every topic made here."""
        self._write_settings()
        self.name_server.start()
        self.name_server.until(lambda: is_open(self.name_server_port), _READY_WITHIN_S)
        self.broker.start()
        self.broker.until(lambda: is_open(self._proxy_port) and all(map(self.serves, self._topics)), _READY_WITHIN_S)

    def kill(self) -> None:
        """kill -9 of broker and proxy. The name server runs on."""
        self.broker.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay without answers; pending requests are executed after `resume`."""
        self.broker.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.broker.resume()

    def close(self) -> None:
        self.broker.kill()
        self.name_server.kill()

    def create_topic(self, name: str, *, queues: int = 4, kind: str = "NORMAL") -> None:
        """`kind`: NORMAL takes messages without a message group, FIFO those with one. Raises LocalError."""
        self.admin(
            "updateTopic", "-b", f"{HOST}:{self.broker_port}", "-t", name, "-r", str(queues), "-w", str(queues),
            "-a", f"+message.type={kind}",
        )  # fmt: skip
        wait_for(lambda: self.serves(name), f"RocketMQ to serve the topic {name}", _READY_WITHIN_S)
        self._topics[name] = queues

    def create_group(self, name: str) -> None:
        """Of consumers: the proxy takes none of a group that the broker does not know. Raises LocalError."""
        self.admin("updateSubGroup", "-b", f"{HOST}:{self.broker_port}", "-g", name)

    def create_user(self, access_key: str, secret_key: str, *topics: str) -> None:
        """A user who may only send to these topics. Raises LocalError."""
        broker = f"{HOST}:{self.broker_port}"
        self.admin("createUser", "-b", broker, "-u", access_key, "-p", secret_key, "-t", "Normal")
        for topic in topics:
            right = ("-s", f"User:{access_key}", "-r", f"Topic:{topic}", "-a", "Pub", "-d", "Allow")
            self.admin("createAcl", "-b", broker, *right)

    def make_read_only(self, topic: str) -> None:
        """From now on it has no queue that takes messages. Raises LocalError."""
        self.admin("updateTopicPerm", "-b", f"{HOST}:{self.broker_port}", "-t", topic, "-p", "4")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The broker takes no message in the meantime, as where too much of its disk is used (see rules.btm)."""
        sign = self.folder / "disk-is-full"
        sign.touch()
        try:
            yield
        finally:
            sign.unlink()

    def serves(self, topic: str) -> bool:
        """Whether the proxy knows the way to it."""
        request = QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.scheme = AddressScheme.IPv4
        request.endpoints.addresses.add(host=HOST, port=self._proxy_port)
        with self.security.channel(self.endpoint) as channel:
            try:
                metadata = self.security.signed(self.endpoint)
                answer = MessagingServiceStub(channel).QueryRoute(request, timeout=5, metadata=metadata)
            except grpc.RpcError:
                return False
        return bool(answer.status.code == Code.OK)

    def count(self, topic: str) -> int:
        """Messages of a topic that was made here, in a ms."""
        return count(HOST, self.broker_port, topic, self._topics[topic])

    def stored(self, topic: str) -> list[Stored]:
        """Every message of a topic, acknowledged by a consumer or not, as the broker has it."""
        return list(stored(self.admin("printMsg", "-t", topic, "-d", "false").split("\n")))

    def admin(self, *arguments: str) -> str:
        """What RocketMQ's `mqadmin` prints. Raises LocalError when the command failed."""
        done = subprocess.run(
            self._command(_TOOLS, *arguments, heap_mib=256, options=self.security.tool_options),
            env=self._environment(), capture_output=True, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        if done.returncode or "SubCommandException" in done.stderr:
            raise LocalError(f"mqadmin {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    # --- processes and settings -------------------------------------------------------------------------------------

    def _command(self, main: str, *arguments: str, heap_mib: int, options: tuple[str, ...] = ()) -> list[str]:
        """All logs go below `folder`; its own output is UTF-8, whatever the locale."""
        own = (f"-Duser.home={self.folder}", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", *options)
        return command(jars(None, JARS), main, *arguments, heap_mib=heap_mib, options=own)

    def _environment(self) -> dict[str, str]:
        return os.environ | {"ROCKETMQ_HOME": str(self.folder), "NAMESRV_ADDR": self._name_server_address}

    def _process(self, name: str, main: str, *arguments: str, heap_mib: int, options: tuple[str, ...] = ()) -> Process:
        return Process(
            f"rocketmq-{name}",
            self._command(main, *arguments, heap_mib=heap_mib, options=options),
            self.folder / f"{name}.log",
            environment=self._environment(),
        )

    def _write_settings(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.security.write_tools(self.folder)
        _write(
            self.folder / "name-server.conf",
            {"listenPort": str(self.name_server_port), "bindAddress": HOST},
        )
        _write(
            self.folder / "broker.conf",
            {
                "brokerClusterName": _CLUSTER,
                "brokerName": "broker",
                "brokerIP1": HOST,
                "brokerIP2": HOST,
                "listenPort": str(self.broker_port),
                "bindAddress": HOST,
                "storePathRootDir": str(self.folder / "data"),
                "autoCreateTopicEnable": "false",
                "mappedFileSizeCommitLog": str(32 << 20),  # bytes; 1 GiB by default
                "mappedFileSizeConsumeQueue": str(20 * 50_000),  # 20 bytes a message
                "mappedFileSizeTimerLog": str(1 << 20),
                "timerFlushIntervalMs": "60000",  # 1000 by default, which takes a fifth of a core at rest
                "maxHashSlotNum": "50000",  # of an index file of 4 MiB; 400 MiB by default
                "maxIndexNum": "200000",
                "diskSpaceWarningLevelRatio": "99",  # percent; above it nothing is written
                **self.security.broker(),
                **self._extra,
            },
        )
        proxy = {
            "rocketMQClusterName": _CLUSTER,
            "proxyName": "proxy",
            "proxyMode": "local",
            "localServeAddr": HOST,
            "namesrvAddr": self._name_server_address,
            "brokerConfigPath": str(self.folder / "broker.conf"),
            "grpcServerPort": self._proxy_port,
            "remotingListenPort": self._remoting_port,
            **self.security.proxy(),
        }
        (self.folder / "proxy.json").write_text(json.dumps(proxy))


def _broker_port() -> int:
    """A free port P where P - 2 is free, too: the broker takes both."""
    while is_open((port := free_port()) - 2):
        pass
    return port


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
