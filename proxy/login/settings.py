"""The section `[login]` of the settings: identities of people and programs from an OpenID Connect provider."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from duemq.model.callers.access import ROLES
from duemq.model.settings import ORIGIN, Duration, SettingsSection, Words, duration
from duemq.model.timing import shown

CALLBACK_PARAMETERS: Final = (
    "code", "state", "iss", "error", "error_description", "error_uri", "session_state", "scope", "authuser", "hd",
    "prompt",
)  # fmt: skip
"""The parameters that providers send back with the browser."""

MAX_TOKEN_BYTES: Final = 16 << 10

_ROLE = re.compile(r"(?P<value>[^=,]{1,200})=(?P<role>[a-z]+)(?::(?P<topics>[A-Za-z0-9._*-]{1,249}))?")


class LoginSettings(SettingsSection):
    """Without an `issuer` there are only API keys."""

    issuer: str = ""
    audience: str = ""
    jwks_url: str = ""
    roles_claim: str = "roles"
    roles: Words = ("duemq-viewer=viewer", "duemq-operator=operator", "duemq-admin=admin")
    name_claim: str = "email"
    client_id: str = ""
    client_secret: Annotated[str, Field(repr=False)] = ""
    url: str = ""
    scopes: str = "openid profile email"
    session: Annotated[Duration, Field(ge=60_000, le=duration("30d"))] = duration("12h")

    @field_validator("issuer", "jwks_url", "url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not ORIGIN.match(url):
            raise ValueError(f"{shown(url)} is no URL such as https://login.example.com")
        return url.rstrip("/") if url.endswith("//") else url

    @field_validator("roles")
    @classmethod
    def _are_roles(cls, roles: tuple[str, ...]) -> tuple[str, ...]:
        for role in roles:
            match = _ROLE.fullmatch(role)
            if match is None or match["role"] not in ROLES:
                known = ", ".join(ROLES)
                raise ValueError(f"{shown(role)} is not VALUE=ROLE or VALUE=ROLE:TOPICS with a role of {known}")
            if match["role"] == "admin" and match["topics"]:
                raise ValueError(f"{shown(role)}: an admin is for all topics")
        return roles

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.issuer and not (self.audience or self.client_id):
            raise ValueError("audience (of tokens) or client_id (of the console) is needed beside issuer")
        if self.client_id and not (self.issuer and self.url):
            raise ValueError("issuer and url, where browsers reach this server, are needed beside client_id")
        return self

    def roles_of(self, values: list[str]) -> tuple[str, tuple[str, ...]] | None:
        """The strongest role for these values of the claim, and its topics (none = all)."""
        matches = [match for role in self.roles if (match := _ROLE.fullmatch(role)) and match["value"] in values]
        for name in reversed(list(ROLES)):
            if own := [match["topics"] for match in matches if match["role"] == name]:
                return name, () if None in own else tuple(own)
        return None
