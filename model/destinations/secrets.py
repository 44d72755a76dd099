"""The form of the secrets that sign webhooks. Errors reveal nothing about the secret."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Final

SYMMETRIC: Final = "whsec_"
ASYMMETRIC: Final = "whsk_"


def check_signing_secret(secret: str) -> None:
    """Raises ValueError. Allowed: `whsec_` and base64 of 24 to 64 bytes; `whsk_` and base64 of 32 or 64 bytes."""
    prefix = next((each for each in (SYMMETRIC, ASYMMETRIC) if secret.startswith(each)), None)
    if prefix is None:
        raise ValueError(f"a signing secret begins with {SYMMETRIC} or {ASYMMETRIC}")
    try:
        key = b64decode(secret.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"after {prefix} a signing secret has base64") from None
    if prefix == SYMMETRIC and not 24 <= len(key) <= 64:
        raise ValueError(f"a secret of {SYMMETRIC} has 24 to 64 bytes")
    if prefix == ASYMMETRIC and len(key) not in (32, 64):
        raise ValueError(f"a secret of {ASYMMETRIC} has 32 bytes, or 64 with the public key")
