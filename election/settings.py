"""The section `[zookeeper]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duemq.model.settings import SettingsSection, Words


class ZooKeeperSettings(SettingsSection):
    """See `ZooKeeperOptions`."""

    hosts: Words = ()
    chroot: str = "/duemq"
    session_timeout_s: Annotated[float, Field(ge=1, le=120)] = 6
    user: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    acl: Literal["open", "creator"] = "open"
    tls: Literal["off", "on"] = "off"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    strategy: Literal["consistent_hash", "average", "circle", "same_rack"] = "consistent_hash"
