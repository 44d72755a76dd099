"""Users of NATS that sign with a key of their own: nkeys, and JWTs as `nsc` makes them."""

from __future__ import annotations

import json
import os
import time
from base64 import urlsafe_b64encode
from typing import Any, NamedTuple

import nkeys

_ALL = -1
_LIMITS = {"wildcards": True} | dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), _ALL)
_STREAMS = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), _ALL)


class Nkey(NamedTuple):
    seed: str
    public: str
    pair: Any

    @classmethod
    def make(cls, prefix: int = nkeys.PREFIX_BYTE_USER) -> Nkey:
        seed = nkeys.encode_seed(os.urandom(32), prefix)
        pair = nkeys.from_seed(bytearray(seed))
        return cls(seed.decode(), pair.public_key.decode(), pair)

    def signed(self, subject: str, claims: dict[str, Any], expires_at: int = 0) -> str:
        """A JWT about `subject`. `expires_at`: epoch s; 0 = never."""
        about: dict[str, Any] = {
            "iss": self.public,
            "sub": subject,
            "iat": int(time.time()),
            "jti": os.urandom(8).hex(),
        }
        if expires_at:
            about["exp"] = expires_at
        body = about | {"nats": claims | {"version": 2}}
        text = f"{_base64({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_base64(body)}"
        return f"{text}.{_encoded(self.pair.sign(text.encode()))}"


class Operator:
    """With one account that may have streams. `settings`: what a server has to know of them."""

    def __init__(self) -> None:
        operator, system = Nkey.make(nkeys.PREFIX_BYTE_OPERATOR), Nkey.make(nkeys.PREFIX_BYTE_ACCOUNT)
        self._account = Nkey.make(nkeys.PREFIX_BYTE_ACCOUNT)
        jwt = operator.signed(operator.public, {"type": "operator", "system_account": system.public})
        preloaded = "\n".join(
            f"{account.public}: {operator.signed(account.public, {'type': 'account', 'limits': limits})}"
            for account, limits in ((self._account, _LIMITS | _STREAMS), (system, _LIMITS))
        )
        accounts = f"resolver: MEMORY\nresolver_preload {{\n{preloaded}\n}}\n"
        self.settings = f"operator: {jwt}\nsystem_account: {system.public}\n{accounts}"

    def creds(self, *publish: str, expires_at: int = 0) -> str:
        """A `.creds` file of a new user who may publish to these subjects (without them, to any)."""
        user = Nkey.make()
        claims: dict[str, Any] = {"type": "user", "subs": _ALL, "data": _ALL, "payload": _ALL}
        claims |= {"pub": {"allow": list(publish)} if publish else {}, "sub": {}}
        jwt = self._account.signed(user.public, claims, expires_at)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def _base64(value: dict[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")
