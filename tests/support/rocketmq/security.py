"""TLS and access keys of a RocketMQ of the tests: what its settings, its tools and its clients need for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from duemq.dev.servers.ports import HOST
from tests.support.rocketmq.client import ClientConfiguration, Credentials, Signature
from tests.support.tls.certificates import Authority

_AUTH: Final = "org.apache.rocketmq.auth"
_ADMIN, _SECRET = "admin", "admin-secret"


@dataclass(frozen=True, slots=True)
class Security:
    """The proxy speaks TLS alone; who is unknown, or has no right, is refused. `keystore`: its certificate and key."""

    authority: Authority
    keystore: Path

    @classmethod
    def make(cls, folder: Path) -> Security:
        authority = Authority.make(folder)
        return cls(authority, authority.keystore("rocketmq"))

    @property
    def java_options(self) -> tuple[str, ...]:
        """Of servers: TLS alone, on the broker's port, too."""
        return ("-Dtls.server.mode=enforcing",)

    @property
    def tool_options(self) -> tuple[str, ...]:
        return "-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=false"

    def broker(self) -> Mapping[str, str]:
        """Lines of broker.conf."""
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
            "authorizationEnabled": "true",
            "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": _ADMIN, "password": _SECRET}),
            "innerClientAuthenticationCredentials": json.dumps({"accessKey": _ADMIN, "secretKey": _SECRET}),
        }

    def proxy(self) -> Mapping[str, Any]:
        """Fields of the proxy's settings. It asks the broker who may do what."""
        own = "org.apache.rocketmq.proxy.auth.Proxy"
        return {
            **{name: value == "true" if value in ("true", "false") else value for name, value in self.broker().items()},
            "authenticationMetadataProvider": f"{own}AuthenticationMetadataProvider",
            "authorizationMetadataProvider": f"{own}AuthorizationMetadataProvider",
            "tlsTestModeEnable": False,
            "tlsKeyPath": str(self.keystore),
            "tlsCertPath": str(self.keystore),
            "enableRemotingLocalProxyGrpc": False,  # its TLS needs a native library
        }

    def write_tools(self, home: Path) -> None:
        """By which `mqadmin` is the administrator."""
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "tools.yml").write_text(f"accessKey: {_ADMIN}\nsecretKey: {_SECRET}\n")

    def channel(self, endpoint: str) -> grpc.Channel:
        return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(self.authority.ca.read_bytes()))


def signed(endpoint: str, secure: bool) -> list[tuple[str, str]]:
    """Metadata of a request, as the client makes them; those of the administrator where it is `secure`."""
    keys = Credentials(_ADMIN, _SECRET) if secure else Credentials()
    return list(Signature.metadata(ClientConfiguration(endpoint, keys), f"tests@{HOST}"))
