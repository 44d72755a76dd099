"""Checks the certificates and keys named in the settings: every setting whose name ends in `_file`."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from duemq.cli.doctor.finding import Finding, error, ok, warning
from duemq.cli.settings.settings import Settings

_SUBJECT = "certificates"
_SOON = timedelta(days=30)


class NamedFile(NamedTuple):
    """A file that a setting names. `setting`: the setting's name, such as kafka.ca_file."""

    setting: str
    path: Path


def files_of(settings: Settings) -> list[NamedFile]:
    return [
        NamedFile(f"{section}.{name}", Path(value))
        for section in type(settings).model_fields
        if isinstance(own := getattr(settings, section), BaseModel)
        for name in type(own).model_fields
        if name.endswith("_file") and (value := getattr(own, name))
    ]


def check_certificates(settings: Settings, now: datetime | None = None) -> Iterator[Finding]:
    """Check all certificates and keys. `now`: a time with its zone; None means the current time."""
    files, now = files_of(settings), now or datetime.now(UTC)
    for file in files:
        yield from _check_file(file, now)
    by_setting = {file.setting: file.path for file in files}
    for setting, cert in by_setting.items():
        key = by_setting.get(setting.replace("cert_file", "key_file"))
        if setting.endswith("cert_file") and key is not None and cert.is_file() and key.is_file():
            yield from _check_pair(setting, cert, key)


def _check_file(file: NamedFile, now: datetime) -> Iterator[Finding]:
    from cryptography.x509 import load_pem_x509_certificates  # the import takes 50 ms

    setting, path = file
    try:
        content = path.read_bytes()
    except OSError as failed:
        yield error(_SUBJECT, f"{setting}: {path}: {failed.strerror}", "correct the setting, or the file's permissions")
        return
    if setting.endswith("key_file"):
        if path.stat().st_mode & 0o007:
            yield warning(_SUBJECT, f"{setting}: every user may read {path}", f"chmod o= {path}")
        return
    try:
        certificates = load_pem_x509_certificates(content)
    except ValueError as failed:
        yield error(_SUBJECT, f"{setting}: {path} has no certificates: {failed}", "use a PEM file")
        return
    for certificate in certificates:
        name, end = certificate.subject.rfc4514_string(), certificate.not_valid_after_utc
        begin = certificate.not_valid_before_utc
        detail = f"{setting}: {name} is valid until {end:%Y-%m-%d}"
        if begin > now:
            yield error(_SUBJECT, f"{setting}: {name} is valid from {begin:%Y-%m-%d %H:%M} UTC", "check this clock")
        elif end <= now:
            yield error(_SUBJECT, f"{setting}: {name} ended on {end:%Y-%m-%d}", "renew it now")
        elif end - now < _SOON:
            yield warning(_SUBJECT, detail, "renew it")
        else:
            yield ok(_SUBJECT, detail)


def _check_pair(setting: str, cert: Path, key: Path) -> Iterator[Finding]:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError, ValueError) as failed:
        yield error(_SUBJECT, f"{setting} and its key do not fit, or the key has a password: {failed}", "use a pair")
