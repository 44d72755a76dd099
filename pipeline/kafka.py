"""How Kafka is reached: duemq's own options (`KafkaOptions`), and the same as Spark's reader wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from duemq.bus.kafka.options import KafkaOptions
from duemq.model.errors import BadConfig

Kafka = str | KafkaOptions
"""`host:port` of some brokers, where no more needs to be said."""

VARIABLES: Final = "DUEMQ_KAFKA__"  # what the environment variables of duemq's section [kafka] begin with
_FIELDS: Final = {
    "protocol": "protocol", "mechanism": "mechanism", "user": "user", "password": "password", "ca_file": "ca",
    "cert_file": "cert", "key_file": "key",
}  # fmt: skip
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def options_of(kafka: Kafka) -> KafkaOptions:
    """Raises BadConfig."""
    return KafkaOptions(kafka) if isinstance(kafka, str) else kafka


def configured(bootstrap: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> KafkaOptions:
    """Of settings named as in duemq's section [kafka], where these are not given of the servers' own environment
    variables (`DUEMQ_KAFKA__PASSWORD`). Raises BadConfig."""
    if unknown := sorted(settings.keys() - _FIELDS.keys()):
        raise BadConfig(f"kafka.{unknown[0]} is not a setting here; there are {', '.join(_FIELDS)}")
    found: dict[str, Any] = {
        field: value
        for name, field in _FIELDS.items()
        if (value := settings.get(name) or environment.get(VARIABLES + name.upper()))
    }
    return replace(KafkaOptions(bootstrap), **found) if found else KafkaOptions(bootstrap)


def reading(kafka: Kafka) -> dict[str, str]:
    """What every reader of duemq's topics has to say to Spark's Kafka source, in batches and streams.

    Without read_committed the records of aborted cycles would count; with `failOnDataLoss` false a range that the
    brokers no longer have would be read as empty. Raises BadConfig.
    """
    options = options_of(kafka)
    return {
        "kafka.bootstrap.servers": ",".join(options.addresses), "includeHeaders": "true",
        "kafka.isolation.level": "read_committed", "failOnDataLoss": "true",
        "kafka.security.protocol": options.protocol, **_tls(options), **_login(options),
    }  # fmt: skip


def _tls(options: KafkaOptions) -> dict[str, str]:
    """The certificates themselves, for executors need not have the files."""
    found: dict[str, str] = {}
    if options.ca is not None:
        found |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": _text(options.ca)}
    if options.cert is not None and options.key is not None:
        found |= {
            "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": _text(options.cert),
            "kafka.ssl.keystore.key": _text(options.key),
        }  # fmt: skip
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"kafka.ca_file, kafka.cert_file, kafka.key_file: cannot use {path}: {error}") from error


def _login(options: KafkaOptions) -> dict[str, str]:
    if not options.protocol.startswith("SASL"):
        return {}
    said = " ".join(
        f'{name}="{_escaped(value or "")}"'
        for name, value in (("username", options.user), ("password", options.password))
    )
    return {
        "kafka.sasl.mechanism": options.mechanism,
        "kafka.sasl.jaas.config": f"{_LOGINS[options.mechanism]} required {said};",
    }


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
