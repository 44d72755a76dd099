"""When the certificates in a PEM file expire."""

from __future__ import annotations

from pathlib import Path

from duemq.model.errors import BadConfig


def expiry_of(path: str | Path) -> float:
    """When the first certificate in a file will expire, epoch s. Raises BadConfig."""
    from cryptography import x509  # takes 30 ms, so servers without TLS do not import it

    try:
        certificates = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path} has no certificates in PEM form: {error}") from error
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
