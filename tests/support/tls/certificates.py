"""Certificates for tests, created on demand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from duemq.tls.files import TlsFiles

HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates; `ca` is the file to trust."""

    ca: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path, name: str = "ca") -> Authority:
        folder.mkdir(parents=True, exist_ok=True)
        authority, path = trustme.CA(), folder / f"{name}.pem"
        authority.cert_pem.write_to_path(path)
        return cls(path, authority)

    def issue(self, name: str, *hosts: str, valid: timedelta = timedelta(days=30)) -> TlsFiles:
        """A certificate and its key in files of this name, next to `ca`; for this machine if no host is given.

        `valid`: lifetime from now on; negative for an expired one.
        """
        expires_at = datetime.now(UTC) + valid
        issued = self.authority.issue_cert(
            *(hosts or HOSTS), not_before=expires_at - timedelta(days=90), not_after=expires_at
        )
        cert, key = self.ca.with_name(f"{name}.pem"), self.ca.with_name(f"{name}.key")
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        for path, content in ((key, issued.private_key_pem.bytes()), (cert, chain)):
            staged = path.with_name(f"{path.name}.new")
            staged.write_bytes(content)
            staged.replace(path)
        return TlsFiles(str(self.ca), str(cert), str(key))

    def keystore(self, name: str) -> Path:
        """A file with a certificate for this machine and its key, in the form that Java reads."""
        files = self.issue(name)
        key = serialization.load_pem_private_key(Path(files.key).read_bytes(), password=None)
        path = self.ca.with_name(f"{name}-keystore.pem")
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + Path(files.cert).read_bytes()
        )
        return path
