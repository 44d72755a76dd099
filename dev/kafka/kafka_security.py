"""Users and a certificate for Kafka's SASL_SSL listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from duemq.dev.servers.ports import HOST

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class KafkaUser:
    """A user of the secure listener. The SCRAM user can use SHA-256 and SHA-512."""

    name: str
    password: str


PLAIN = KafkaUser("plain-user", "plain-secret")
SCRAM = KafkaUser("scram-user", "scram-secret")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make an authority for this folder. Files: `ca.pem`, and `broker.pem` (key and certificate for this machine)."""
    import trustme
    from cryptography.hazmat.primitives import serialization

    authority = trustme.CA()
    issued = authority.issue_cert(HOST, "localhost")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pkcs8 = key.private_bytes(  # the only form of private key that Kafka reads
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ca_file, broker_file = folder / "ca.pem", folder / "broker.pem"
    authority.cert_pem.write_to_path(ca_file)
    broker_file.write_bytes(pkcs8 + b"".join(part.bytes() for part in issued.cert_chain_pems))
    return ca_file, broker_file


def settings(broker_file: Path) -> Mapping[str, str]:
    """The broker's settings for the SASL_SSL listener, except for the listener itself."""
    plain = f'{_MODULES}.plain.PlainLoginModule required user_{PLAIN.name}="{PLAIN.password}";'
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker_file),
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM_MECHANISMS)),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        **{f"listener.name.sasl_ssl.{name.lower()}.sasl.jaas.config": scram for name in SCRAM_MECHANISMS},
    }


def format_options() -> list[str]:
    """The options of `StorageTool format` that add the SCRAM user."""
    return [
        option
        for mechanism in SCRAM_MECHANISMS
        for option in ("--add-scram", f"{mechanism}=[name={SCRAM.name},password={SCRAM.password}]")
    ]
