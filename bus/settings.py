"""The sections `[embedded]` and `[kafka]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duemq.model.settings import KIB, MIB, Duration, SettingsSection, Size, Words, duration


class EmbeddedSettings(SettingsSection):
    retention: Annotated[Duration, Field(ge=60_000)] = duration("7d")
    buffer_bytes: Annotated[Size, Field(ge=MIB)] = 32 * MIB
    linger_ms: Annotated[float, Field(ge=0, le=1000)] = 0


class KafkaSettings(SettingsSection):
    """See `KafkaOptions`."""

    bootstrap: Words = ()
    prefix: Annotated[str, Field(pattern=r"^(duemq\.([A-Za-z0-9._-]{1,100}\.)?)?$")] = ""
    accept_topics: Words = ()
    replication_factor: Annotated[int, Field(ge=1, le=32)] = 1
    min_insync_replicas: Annotated[int, Field(ge=1, le=32)] = 1
    retention: Annotated[Duration, Field(ge=60_000)] = duration("7d")
    max_message_bytes: Annotated[Size, Field(ge=64 * KIB, le=256 * MIB)] = 8 * MIB
    buffer_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    linger_ms: Annotated[float, Field(ge=0, le=1000)] = 0
    request_timeout_ms: Annotated[int, Field(ge=500, le=120_000)] = 6_000
    transaction_timeout_ms: Annotated[int, Field(ge=1_000, le=900_000)] = 10_000
    transactions: Literal["auto", "v1"] = "auto"
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
