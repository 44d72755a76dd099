"""The section `[http]` of the settings."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from duemq.model.settings import KIB, MIB, ORIGIN, Networks, SettingsSection, Size, Switch, Words, reader
from duemq.model.timing import shown
from duemq.tls.contexts import ClientAuth

_API_KEY = re.compile(r"[!-+\--~]{8,}")  # keys are separated by commas in the environment
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(","))  # an empty key comes from a variable without its secret


class HttpSettings(SettingsSection):
    api_keys: Annotated[tuple[str, ...], reader(_keys), Field(repr=False)] = ()
    access: Literal["auto", "keys"] = "auto"
    open: Switch = False
    open_metrics: Switch = False
    read_consumes: Switch = False
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth: ClientAuth = "none"
    hosts: Words = ()
    origins: Words = ()
    trusted_proxies: Networks = ()
    answer_timeout_ms: Annotated[int, Field(ge=1, le=600_000)] = 2000
    max_wait_s: Annotated[float, Field(ge=0, le=3600)] = 60
    shutdown_grace_s: Annotated[float, Field(ge=0, le=3600)] = 10
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    max_requests: Annotated[int, Field(ge=1)] = 4096
    max_inflight_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    max_head_bytes: Annotated[Size, Field(ge=8 * KIB)] = 256 * KIB
    head_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    write_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30
    keep_alive_s: Annotated[float, Field(gt=0, le=3600)] = 75
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 0

    @field_validator("api_keys")
    @classmethod
    def _are_secret(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if not _API_KEY.fullmatch(key):
                raise ValueError("a key has 8 or more printable characters of ASCII, without blanks and commas")
        return keys

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{shown(host)} is neither a name such as duemq.example.com nor *.example.com")
        return hosts

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"{shown(origin)} is no origin such as https://app.example.com")
        return origins
