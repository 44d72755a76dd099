"""Until when the certificates in a PEM file are valid."""

from __future__ import annotations

from pathlib import Path

from duemq.model.errors import BadConfig


def expiry_of(path: str | Path) -> float:
    """The moment (epoch s) at which the first of the certificates in a file expires. Raises BadConfig."""
    from cryptography import x509  # costs 30 ms, which servers without TLS save

    try:
        certificates = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path} has no certificates in PEM form: {error}") from error
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
