"""An OpenID Connect provider for tests: its documents, keys and tokens, behind an httpx transport."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.com"
CLIENT, SECRET = "duemq-console", "s3cr+t/&"
ACCESS = "an-opaque-access-token"


class Provider:
    """`requests` counts its requests by kind; `away`: it answers 503. `userinfo`: its claims about a logged-in person;
    None: only those in the ID token."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.published: list[dict[str, Any]] = [
            RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True) | {"kid": "r1", "use": "sig", "alg": "RS256"}
        ]
        self.requests: list[str] = []
        self.away = False
        self.userinfo: dict[str, Any] | None = None
        self.codes: dict[str, dict[str, Any]] = {}  # code -> what the browser asked for, with the claims to give

    def publish_ec(self) -> None:
        self.published.append(ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True) | {"kid": "e1"})

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def token(
        self, key: Any = None, algorithm: str = "RS256", kid: str | None = "r1", type_: str | None = "JWT",
        **claims: Any,
    ) -> str:  # fmt: skip
        now = int(time.time())
        content = {
            "iss": ISSUER, "aud": CLIENT, "sub": "u17", "email": "anna@example.com",
            "email_verified": True, "exp": now + 600, "iat": now,
            "roles": ["duemq-operator"],
        } | claims  # fmt: skip
        content = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(
            content, key or self.rsa, algorithm, headers={"typ": type_} | ({} if kid is None else {"kid": kid})
        )

    def log_in(self, url: str, **claims: Any) -> dict[str, str]:
        """The browser's request after a person has logged in at this URL."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked | {"claims": claims}
        return {"code": code, "state": asked["state"], "iss": ISSUER, "session_state": "x"}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.url.path)
        if self.away:
            return httpx.Response(503)
        match request.url.path:
            case "/.well-known/openid-configuration":
                document = {
                    "issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys", "authorization_endpoint": f"{ISSUER}/authorize",
                    "token_endpoint": f"{ISSUER}/token",
                }  # fmt: skip
                userinfo = {} if self.userinfo is None else {"userinfo_endpoint": f"{ISSUER}/me"}
                return httpx.Response(200, json=document | userinfo)
            case "/keys":
                return httpx.Response(200, json={"keys": self.published})
            case "/token":
                return self._exchange(request)
            case "/me" if request.headers.get("Authorization") == f"Bearer {ACCESS}":
                return httpx.Response(200, json=self.userinfo)
        return httpx.Response(404)

    def _exchange(self, request: httpx.Request) -> httpx.Response:
        fields = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        asked = self.codes.pop(fields["code"], None)
        if asked is None:
            return httpx.Response(400, json={"error": "invalid_grant"})
        challenge = urlsafe_b64encode(sha256(fields["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        good = challenge == asked["code_challenge"] and fields["redirect_uri"] == asked["redirect_uri"]
        if not good or not request.headers.get("Authorization", "").startswith("Basic "):
            return httpx.Response(400, json={"error": "invalid_grant"})
        token = self.token(**({"nonce": asked["nonce"]} | asked["claims"]))
        return httpx.Response(200, json={"id_token": token, "access_token": ACCESS, "token_type": "Bearer"})
