"""The connection to Kafka: duemq's own options (`KafkaOptions`), and their form for Spark's reader.

Spark reads with Kafka's Java client and supports all of its logins: options named `kafka.…` are passed on unchanged
(`JavaKafka`). The driver asks for topics and offsets with duemq's client (aiokafka), which supports PLAIN and SCRAM;
for other logins it uses the Java client, too (`java_logs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from duemq.bus.kafka.options import KafkaOptions
from duemq.model.errors import BadConfig
from duemq.model.topics.topic_names import TopicNames

VARIABLES: Final = "DUEMQ_KAFKA__"  # the prefix of environment variables for duemq's section [kafka]
JAVA: Final = "kafka."  # the prefix of options for Java's client
EARLIEST: Final = -2
LATEST: Final = -1
"""Times in requests for offsets that mean the start and the end of a log."""
CONFIGURED: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
"""The settings of a topic that `ranges.Retention` needs."""
_FIELDS: Final = {
    "protocol": "protocol", "mechanism": "mechanism", "user": "user", "password": "password", "ca_file": "ca",
    "cert_file": "cert", "key_file": "key",
}  # fmt: skip
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# An audit relies on some of these settings; the others are set elsewhere.
_FIXED: Final = ("kafka.bootstrap.servers", "kafka.isolation.level", "kafka.enable.auto.commit")
_LOGIN_NAMES: Final = ("kafka.sasl.", "kafka.security.", "kafka.ssl.")


@dataclass(frozen=True, slots=True)
class JavaKafka:
    """`properties`: options of Kafka's Java client, named `kafka.…`, which override `options`. Raises BadConfig for
    options that the jobs set themselves."""

    options: KafkaOptions
    properties: Mapping[str, str] = field(repr=False)  # passwords are among them

    def __post_init__(self) -> None:
        for name in self.properties:
            if not name.startswith(JAVA):
                raise BadConfig(f"{name} is no option of Kafka's client: their names begin with {JAVA}")
            if name in _FIXED:
                raise BadConfig(f"{name} cannot be set: the job chooses it")

    @property
    def java_login(self) -> bool:
        """Whether only the Java client supports the login."""
        return any(name.startswith(_LOGIN_NAMES) for name in self.properties)


Kafka = str | KafkaOptions | JavaKafka
"""A text is the `host:port` of some brokers."""


def options_of(kafka: Kafka) -> KafkaOptions:
    """The options of a connection. Raises BadConfig."""
    if isinstance(kafka, str):
        return KafkaOptions(kafka)
    return kafka.options if isinstance(kafka, JavaKafka) else kafka


def configured(bootstrap: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> KafkaOptions | JavaKafka:
    """The connection from settings in duemq's section [kafka], or else from the servers' environment variables
    (`DUEMQ_KAFKA__PASSWORD`), and from options of the Java client, named `kafka.…`. Raises BadConfig."""
    properties = {name: value for name, value in settings.items() if name.startswith(JAVA)}
    if unknown := sorted(settings.keys() - properties.keys() - _FIELDS.keys() - {"prefix"}):
        raise BadConfig(
            f"kafka.{unknown[0]} is not a setting here; there are {', '.join(_FIELDS)}, prefix, and options of Kafka's "
            f"client such as kafka.sasl.mechanism"
        )
    fields: dict[str, Any] = {
        of: value
        for name, of in _FIELDS.items()
        if (value := settings.get(name) or environment.get(VARIABLES + name.upper()))
    }
    if prefix := settings.get("prefix") or environment.get(f"{VARIABLES}PREFIX"):
        fields["names"] = TopicNames(prefix)
    options = replace(KafkaOptions(bootstrap), **fields) if fields else KafkaOptions(bootstrap)
    return JavaKafka(options, properties) if properties else options


def reading(kafka: Kafka) -> dict[str, str]:
    """The options of Spark's Kafka source for every reader of duemq's topics, batch or stream.

    Without read_committed, records of aborted cycles would be read. Without `failOnDataLoss`, a range that the brokers
    have dropped would be read as empty. Topics are not created, though brokers may do so on request. Raises BadConfig.
    """
    return {
        **client(kafka), "includeHeaders": "true", "kafka.isolation.level": "read_committed", "failOnDataLoss": "true",
        "kafka.allow.auto.create.topics": "false",
    }  # fmt: skip


def client(kafka: Kafka) -> dict[str, str]:
    """The options of the Java client for the connection, named `kafka.…`. Raises BadConfig."""
    options = options_of(kafka)
    return {
        "kafka.bootstrap.servers": ",".join(options.addresses), "kafka.security.protocol": options.protocol,
        **_tls(options), **_login(options), **(kafka.properties if isinstance(kafka, JavaKafka) else {}),
    }  # fmt: skip


def _tls(options: KafkaOptions) -> dict[str, str]:
    """The certificates as text, because executors may not have the files."""
    properties: dict[str, str] = {}
    if options.ca is not None:
        properties |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": _text(options.ca)}
    if options.cert is not None and options.key is not None:
        properties |= {
            "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": _text(options.cert),
            "kafka.ssl.keystore.key": _text(options.key),
        }  # fmt: skip
    return properties


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"kafka.ca_file, kafka.cert_file, kafka.key_file: cannot use {path}: {error}") from error


def _login(options: KafkaOptions) -> dict[str, str]:
    if not options.protocol.startswith("SASL"):
        return {}
    credentials = " ".join(
        f'{name}="{_escaped(value or "")}"'
        for name, value in (("username", options.user), ("password", options.password))
    )
    return {
        "kafka.sasl.mechanism": options.mechanism,
        "kafka.sasl.jaas.config": f"{_LOGINS[options.mechanism]} required {credentials};",
    }


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
