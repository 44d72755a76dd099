"""The PEM files of one end of a TLS connection, and errors that name the files' settings."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duemq.model.errors import BadConfig

# For TLS 1.2: authenticated ciphers with forward secrecy. TLS 1.3 has only such ciphers.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files, empty = none. `ca`: the authorities to trust; `cert`, `key`: this end's certificate and key.

    `ca_setting`, `cert_setting`, `key_setting`: how errors name them.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    ca_setting: str = "ca_file"
    cert_setting: str = "cert_file"
    key_setting: str = "key_file"

    def __bool__(self) -> bool:
        return bool(self.ca or self.cert or self.key)

    def named(self) -> Iterator[tuple[str, str]]:
        """The setting and path of each file that is set."""
        settings = (self.ca_setting, self.cert_setting, self.key_setting)
        return ((setting, path) for setting, path in zip(settings, (self.ca, self.cert, self.key), strict=True) if path)

    def state(self) -> tuple[object, ...]:
        """A value that changes when a file is replaced or written to, even if the path is a link."""
        return tuple(_state_of(path) for _, path in self.named())

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises BadConfig, which names the setting, the file and the problem."""
        if bool(self.cert) != bool(self.key):
            raise BadConfig(f"{self.cert_setting} and {self.key_setting} belong together: set both or none")
        for setting, path in self.named():
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise BadConfig(f"{setting}: {path} cannot be read: {error.strerror}") from error
        if self.ca:
            try:
                context.load_verify_locations(self.ca)
            except (OSError, ValueError) as error:  # an SSLError is an OSError
                raise BadConfig(f"{self.ca_setting}: {self.ca} has no certificates in PEM form") from error
        if self.cert:
            self._load_own(context)

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            # If no password were given, OpenSSL would prompt for an encrypted key's password at the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                raise BadConfig(
                    f"{self.key_setting}: the key in {self.key} does not belong to the certificate in {self.cert}"
                ) from error
            raise BadConfig(
                f"{self.cert_setting}, {self.key_setting}: {self.cert} and {self.key} are not a certificate and its "
                f"key in PEM form, the key without a password: {error}"
            ) from error


def strict(protocol: int) -> ssl.SSLContext:
    """A context for TLS 1.2 and newer, with strong ciphers only."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
