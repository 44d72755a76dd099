"""The sections `[delivery]` and `[node]` of the settings."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from duemq.model.settings import KIB, MIB, Delays, SettingsSection, Size, delays, host_and_port
from duemq.tls.contexts import ClientAuth

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class DeliverySettings(SettingsSection):
    max_cycle_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    max_cycle_bytes: Annotated[Size, Field(ge=64 * KIB, le=1024 * MIB)] = 8 * MIB
    max_attempts: Annotated[int, Field(ge=1, le=65_535)] = 16
    retry_delays: Delays = delays("1s 5s 10s 30s 1m")
    stuck_after_s: Annotated[float, Field(ge=1, le=86_400)] = 60


class NodeSettings(SettingsSection):
    """If `name` is empty, it is this machine's host name; if `advertise` is empty, it is the host that the node listens
    on."""

    name: str = ""
    rack: str = ""
    listen: str = "127.0.0.1:8788"
    link_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    advertise: str = ""
    token: Annotated[str, Field(repr=False)] = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_auth: ClientAuth = "required"
    max_clock_offset_ms: Annotated[int, Field(ge=10, le=60_000)] = 500

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str) -> str:
        return host_and_port(listen)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if name and not _NODE.fullmatch(name):
            raise ValueError("a node's name has 1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or digit")
        return name
