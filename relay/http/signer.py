"""Signatures of Standard Webhooks (https://www.standardwebhooks.com): the receiver knows that the request is ours.

`whsec_` + base64 of 24 to 64 bytes: HMAC-SHA256, `v1,…`. `whsk_` + base64 of an ed25519 key (seed, or seed and public
key): `v1a,…`, which receivers check with the public key. Two secrets give two signatures, separated by a space.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Final

from duemq.model.destinations.secrets import ASYMMETRIC, SYMMETRIC, check_signing_secret

Sign = Callable[[bytes], str]


class Signer:
    """Signs with each secret. Raises ValueError for an invalid secret."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._signs: Final = [_sign_of(secret) for secret in secrets]

    def signature(self, id_: str, timestamp_s: int, body: bytes) -> str:
        """The `webhook-signature` header; empty without secrets."""
        if not self._signs:
            return ""
        signed = b"%s.%d.%s" % (id_.encode(), timestamp_s, body)
        return " ".join([sign(signed) for sign in self._signs])


def _sign_of(secret: str) -> Sign:
    check_signing_secret(secret)
    if secret.startswith(SYMMETRIC):
        return _symmetric(b64decode(secret.removeprefix(SYMMETRIC)))
    return _asymmetric(b64decode(secret.removeprefix(ASYMMETRIC)))


def _symmetric(key: bytes) -> Sign:
    def sign(signed: bytes) -> str:
        return "v1," + b64encode(hmac.digest(key, signed, "sha256")).decode()

    return sign


def _asymmetric(key: bytes) -> Sign:
    # Imported here: it costs 30 ms that endpoints with HMAC signatures do not need.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(key[:32])

    def sign(signed: bytes) -> str:
        return "v1a," + b64encode(private.sign(signed)).decode()

    return sign
