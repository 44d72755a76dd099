"""How to connect to ZooKeeper. The settings are checked before the first connection."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from duemq.election.allocation import StrategyName
from duemq.model.errors import BadConfig
from duemq.tls.files import TlsFiles, strict

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CHROOT = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """Times are in seconds.

    `hosts`: HOST:PORT, separated by commas. `chroot`: the ZooKeeper path under which clusters have their data.
    `session_timeout_s`: after this time a silent node is no longer a member (the server allows 2 to 20 of its ticks).
    `connect_timeout_s`: how long the start waits for the first connection. `user`, `password`: digest credentials.
    `acl`: the clients with access to duemq's data: "open" = every client, "creator" = `user`. `tls`: use TLS;
    `ca_file`, `cert_file` and `key_file` are PEM files; `verify_host`: check the server's name against its certificate.
    Raises BadConfig.
    """

    hosts: str = "127.0.0.1:2181"
    chroot: str = "/duemq"
    session_timeout_s: float = 6.0
    connect_timeout_s: float = 15.0
    user: str = ""
    password: str = ""
    acl: Literal["open", "creator"] = "open"
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify_host: bool = True
    strategy: StrategyName = StrategyName.CONSISTENT_HASH

    def __post_init__(self) -> None:
        for host in self.hosts.split(","):
            _check_host(host.strip())
        if not _CHROOT.fullmatch(self.chroot):
            raise BadConfig(f'zookeeper.chroot = "{self.chroot}": must be a path such as /duemq, or empty')
        if self.session_timeout_s <= 0 or self.connect_timeout_s <= 0:
            raise BadConfig("zookeeper.session_timeout and zookeeper.connect_timeout must be above 0")
        if ":" in self.user:
            raise BadConfig("zookeeper.user must not contain a colon")
        if self.acl == "creator" and not self.user:
            raise BadConfig('zookeeper.acl = "creator" needs zookeeper.user and zookeeper.password')
        files = TlsFiles(
            self.ca_file,
            self.cert_file,
            self.key_file,
            "zookeeper.ca_file",
            "zookeeper.cert_file",
            "zookeeper.key_file",
        )
        if files and not self.tls:
            setting, _ = next(files.named())
            raise BadConfig(f"{setting} is set, but zookeeper.tls is off: nothing would be encrypted")
        files.load_into(strict(ssl.PROTOCOL_TLS_CLIENT))  # kazoo reads them at each connection: report errors now


def check_name(key: str, name: str) -> None:
    """Check the name of a node or cluster, which becomes a part of a path. Raises BadConfig, which names the setting
    `key`."""
    if not is_name(name):
        raise BadConfig(
            f'{key} = "{name}": 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first'
        )


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _check_host(host: str) -> None:
    try:
        parts = urlsplit(f"//{host}")
        good = bool(parts.hostname) and parts.port is not None and parts.netloc == host
    except ValueError:
        good = False
    if not good:
        raise BadConfig(f'zookeeper.hosts: "{host}" is not HOST:PORT (a path belongs into zookeeper.chroot)')
