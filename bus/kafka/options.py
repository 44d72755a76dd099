"""How to connect to a Kafka cluster, and the settings of duemq's own topics on it."""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass, field
from typing import Any

from aiokafka.helpers import create_ssl_context

from duemq.model.errors import BadConfig
from duemq.model.topics.topic_names import TopicNames
from duemq.tls.contexts import FileContext
from duemq.tls.files import TlsFiles

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TRANSACTIONS = ("auto", "v1")

# While a broker is out of reach, aiokafka logs every attempt to connect, twenty times a second. duemq logs it once, and
# reports it in `trouble`.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}")
# How long a client waits before a retry. A new committer also waits this long while the broker ends the previous
# committer's open transaction, so this delay is part of every takeover.
_RETRY_MS = 40


@dataclass(frozen=True)
class KafkaOptions:
    """`cluster` identifies this duemq cluster on the brokers: two duemq clusters that share brokers need different
    names.

    `replication_factor`, `min_insync_replicas`, `retention_ms` and `max_message_bytes` apply to duemq's own topics.
    `ca`, `cert`, `key`: paths of PEM files. `buffer_bytes`: how much memory keeps frames of duemq's own topics for
    their readers. `names`: the names of topics and groups. `transactions`: v1 = the protocol before Kafka 4; auto = v2
    (KIP-890) if the cluster supports it. Raises BadConfig for values that cannot work.
    """

    bootstrap: str
    cluster: str = "duemq"
    replication_factor: int = 1
    min_insync_replicas: int = 1
    retention_ms: int = 7 * 24 * 3_600_000
    max_message_bytes: int = 8 << 20
    protocol: str = "PLAINTEXT"
    mechanism: str = "SCRAM-SHA-512"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    request_timeout_ms: int = 6_000
    transaction_timeout_ms: int = 10_000
    buffer_bytes: int = 64 << 20
    transactions: str = "auto"
    names: TopicNames = field(default_factory=TopicNames)

    def __post_init__(self) -> None:
        if not all(_ADDRESS.fullmatch(address) for address in self.addresses):
            raise BadConfig(
                f"kafka.bootstrap is host:port of one or more brokers, separated by commas, not {self.bootstrap!r}"
            )
        if self.protocol not in PROTOCOLS:
            raise BadConfig(f"kafka.protocol is one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        if self.protocol.startswith("SASL"):
            if self.mechanism not in MECHANISMS:
                raise BadConfig(f"kafka.mechanism is one of {', '.join(MECHANISMS)}, not {self.mechanism!r}")
            if self.user is None or self.password is None:
                raise BadConfig(f"kafka.protocol {self.protocol} needs kafka.user and kafka.password")
        if self.transactions not in TRANSACTIONS:
            raise BadConfig(f"kafka.transactions is one of {', '.join(TRANSACTIONS)}, not {self.transactions!r}")
        if (self.cert is None) != (self.key is None):
            raise BadConfig("kafka.cert and kafka.key belong together: give both or none")
        if not 1 <= self.min_insync_replicas <= self.replication_factor:
            raise BadConfig(
                f"kafka.min_insync_replicas is {self.min_insync_replicas} and must be between 1 and "
                f"kafka.replication_factor, which is {self.replication_factor}"
            )

    @property
    def addresses(self) -> list[str]:
        return self.bootstrap.replace(" ", "").split(",")

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def delivery_timeout_s(self) -> float:
        """How long to wait for an append or a commit: a dead broker's partitions get new leaders within this time."""
        return self.transaction_timeout_ms / 1000

    def transactional_id(self, committer: str) -> str:
        """The transactional id of the committer with this name."""
        return f"duemq-{self.cluster}-{committer}"

    def client(self) -> dict[str, Any]:
        """The arguments that all aiokafka clients share. Raises BadConfig if a file cannot be read."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.addresses,
            "client_id": f"duemq-{self.cluster}",
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": _RETRY_MS,
            "metadata_max_age_ms": 60_000,
            "security_protocol": self.protocol,
        }
        if self.protocol.endswith("SSL"):
            settings["ssl_context"] = self._ssl_context()
        if self.protocol.startswith("SASL"):
            settings["sasl_mechanism"] = self.mechanism
            settings["sasl_plain_username"], settings["sasl_plain_password"] = self.user, self.password
        return settings

    def _ssl_context(self) -> ssl.SSLContext:
        return FileContext(TlsFiles(self.ca or "", self.cert or "", self.key or ""), self._read_files)

    def _read_files(self) -> ssl.SSLContext:
        try:
            # If no password were given, OpenSSL would prompt for an encrypted key's password at the terminal.
            context: ssl.SSLContext = create_ssl_context(
                cafile=self.ca, certfile=self.cert, keyfile=self.key, password=""
            )
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(path for path in (self.ca, self.cert, self.key) if path)
            raise BadConfig(f"kafka.ca, kafka.cert, kafka.key: cannot use {files}: {error}") from error
        return context
