"""How Kafka is reached: duemq's own options (`KafkaOptions`), and the same as Spark's reader wants them.

Spark reads with Kafka's Java client, so that any login works which that one knows: options named `kafka.…` are passed
to it as they are (`JavaKafka`). duemq's own client (aiokafka) knows PLAIN and SCRAM from here. With any other login the
driver asks for topics and offsets through Java's client, too (`java_logs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from duemq.bus.kafka.options import KafkaOptions
from duemq.model.errors import BadConfig
from duemq.model.topics.topic_names import TopicNames

VARIABLES: Final = "DUEMQ_KAFKA__"  # what the environment variables of duemq's section [kafka] begin with
JAVA: Final = "kafka."  # what the names of options for Java's client begin with
EARLIEST: Final = -2
LATEST: Final = -1
"""Times that stand for where a log begins and ends, in requests for offsets."""
CONFIGURED: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
"""The settings of a topic that `ranges.Retention` is made of."""
_FIELDS: Final = {
    "protocol": "protocol", "mechanism": "mechanism", "user": "user", "password": "password", "ca_file": "ca",
    "cert_file": "cert", "key_file": "key",
}  # fmt: skip
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# What an audit rests on, or what is given otherwise.
_FIXED: Final = ("kafka.bootstrap.servers", "kafka.isolation.level", "kafka.enable.auto.commit")
_LOGIN_NAMES: Final = ("kafka.sasl.", "kafka.security.", "kafka.ssl.")


@dataclass(frozen=True, slots=True)
class JavaKafka:
    """`properties`: options of Kafka's Java client, by names that begin with `kafka.`. They stand above what `options`
    say. Raises BadConfig for those that jobs have to choose themselves."""

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
        """Whether only Java's client knows how to log in."""
        return any(name.startswith(_LOGIN_NAMES) for name in self.properties)


Kafka = str | KafkaOptions | JavaKafka
"""`host:port` of some brokers, where no more needs to be said."""


def options_of(kafka: Kafka) -> KafkaOptions:
    """Raises BadConfig."""
    if isinstance(kafka, str):
        return KafkaOptions(kafka)
    return kafka.options if isinstance(kafka, JavaKafka) else kafka


def configured(bootstrap: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> KafkaOptions | JavaKafka:
    """How Kafka is reached: by settings named as in duemq's section [kafka], where these are not given by the servers'
    own environment variables (`DUEMQ_KAFKA__PASSWORD`), and by options of Java's client, named `kafka.…`. Raises
    BadConfig."""
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
    """What every reader of duemq's topics has to say to Spark's Kafka source, in batches and streams.

    Without read_committed the records of aborted cycles would count; with `failOnDataLoss` false a range that the
    brokers no longer have would be read as empty; brokers may make a topic that a consumer asks for. Raises BadConfig.
    """
    return {
        **client(kafka), "includeHeaders": "true", "kafka.isolation.level": "read_committed", "failOnDataLoss": "true",
        "kafka.allow.auto.create.topics": "false",
    }  # fmt: skip


def client(kafka: Kafka) -> dict[str, str]:
    """How Java's client reaches Kafka: its options by names that begin with `kafka.`. Raises BadConfig."""
    options = options_of(kafka)
    return {
        "kafka.bootstrap.servers": ",".join(options.addresses), "kafka.security.protocol": options.protocol,
        **_tls(options), **_login(options), **(kafka.properties if isinstance(kafka, JavaKafka) else {}),
    }  # fmt: skip


def _tls(options: KafkaOptions) -> dict[str, str]:
    """The certificates themselves, for executors need not have the files."""
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
