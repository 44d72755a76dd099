"""TLS and access keys of a RocketMQ for tests: for its settings, its tools and its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import grpc

from duemq.dev.servers.ports import HOST
from tests.support.rocketmq.client import ClientConfiguration, Credentials, Signature
from tests.support.tls.certificates import Authority

_AUTH: Final = "org.apache.rocketmq.auth"
ACCESS: Final = ("duemq-access", "duemq-secret")
"""Access and secret key of a user whom tests make."""
_ADMIN, _SECRET = "admin", "admin-secret"


class Open:
    """Without TLS, and for everybody."""

    java_options: tuple[str, ...] = ("-Dtls.server.mode=disabled",)
    """Of the broker and the proxy. With TLS the proxy would need a native library, even where nobody uses it."""
    tool_options: tuple[str, ...] = ()
    _keys = Credentials()

    def broker(self) -> dict[str, str]:
        """Lines of broker.conf."""
        return {}

    def proxy(self) -> dict[str, Any]:
        """Fields of the proxy's settings."""
        return {}

    def write_tools(self, home: Path) -> None:
        """What `mqadmin` reads."""

    def channel(self, endpoint: str) -> grpc.Channel:
        """To the proxy."""
        return grpc.insecure_channel(endpoint)

    def signed(self, endpoint: str) -> list[tuple[str, str]]:
        """Metadata of a request, as the client makes them."""
        return list(Signature.metadata(ClientConfiguration(endpoint, self._keys), f"tests@{HOST}"))


class Closed(Open):
    """Proxy and broker accept only TLS, and refuse unknown users and missing rights. `folder`: for certificates."""

    java_options = ("-Dtls.server.mode=enforcing",)
    tool_options = ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=false")
    _keys = Credentials(_ADMIN, _SECRET)

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.make(folder)
        self._keystore = self.authority.keystore("rocketmq")

    def broker(self) -> dict[str, str]:
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

    def proxy(self) -> dict[str, Any]:
        """It asks the broker for users' rights."""
        own = "org.apache.rocketmq.proxy.auth.Proxy"
        return {
            **{name: value == "true" if value in ("true", "false") else value for name, value in self.broker().items()},
            "authenticationMetadataProvider": f"{own}AuthenticationMetadataProvider",
            "authorizationMetadataProvider": f"{own}AuthorizationMetadataProvider",
            "tlsTestModeEnable": False,
            "tlsKeyPath": str(self._keystore),
            "tlsCertPath": str(self._keystore),
            "enableRemotingLocalProxyGrpc": False,  # its TLS needs a native library
        }

    def write_tools(self, home: Path) -> None:
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "tools.yml").write_text(f"accessKey: {_ADMIN}\nsecretKey: {_SECRET}\n")

    def channel(self, endpoint: str) -> grpc.Channel:
        return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(self.authority.ca.read_bytes()))
