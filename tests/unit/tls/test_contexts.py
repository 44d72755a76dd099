"""Contexts from files: what is wrong with files, which ends trust each other, and what happens when files change."""

from __future__ import annotations

import logging
import os
import ssl
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest

from duemq.model.errors import BadConfig
from duemq.tls.certificates import expiry_of
from duemq.tls.contexts import ClientAuth, FileContext, client_context, node_context, server_context
from duemq.tls.files import TlsFiles
from tests.support.tls.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


def shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> ssl.SSLObject:
    """The client's end of a connection. Raises SSLError where one of them refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [ours, server.wrap_bio(to_server, to_client, server_side=True)]
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    return ours


def serial(client: ssl.SSLContext, server: ssl.SSLContext) -> object:
    certificate = shake(client, server).getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


def without(files: TlsFiles, *names: str) -> TlsFiles:
    return TlsFiles(*("" if name in names else getattr(files, name) for name in ("ca", "cert", "key")))


def test_bad_files_are_named(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("server"), authority.issue("other")
    (tmp_path / "garbage").write_text("garbage")
    garbage = str(tmp_path / "garbage")
    for files, told in (
        (TlsFiles(cert="/none.pem", key=good.key), r"^cert_file: /none\.pem cannot be read: No such file"),
        (TlsFiles(cert=good.cert, key=str(tmp_path)), r"^key_file: .* cannot be read: Is a directory"),
        (
            TlsFiles(cert=good.cert, key=other.key),
            r"^key_file: the key in .*other\.key does not belong to .*server\.pem",
        ),
        (TlsFiles(cert=garbage, key=good.key), r"^cert_file, key_file: .*garbage and .* in PEM form"),
        (TlsFiles(cert=good.cert, key=garbage), r"^cert_file, key_file: .* in PEM form"),
        (TlsFiles(cert=good.cert), r"^cert_file and key_file belong together"),
        (TlsFiles(key=good.key), r"^cert_file and key_file belong together"),
        (TlsFiles(ca=garbage, cert=good.cert, key=good.key), r"^ca_file: .*garbage has no certificates in PEM form"),
    ):
        with pytest.raises(BadConfig, match=told):
            server_context(files, "required" if files.ca else "none")


def test_a_key_with_a_password_is_refused_without_asking_for_it(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    good, locked = authority.issue("server"), tmp_path / "locked.key"
    key = serialization.load_pem_private_key(Path(good.key).read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(BadConfig, match="the key without a password"):
        server_context(TlsFiles(cert=good.cert, key=str(locked)))


def test_who_checks_clients_needs_to_know_whom_to_trust(authority: Authority) -> None:
    files = authority.issue("server")
    for client_auth in get_args(ClientAuth)[1:]:
        with pytest.raises(BadConfig, match=r"^ca_file is not set"):
            server_context(without(files, "ca"), client_auth)


@pytest.mark.parametrize(
    ("client_auth", "shows", "trusted"),
    [
        ("none", "nothing", True),
        ("none", "stranger", True),
        ("optional", "nothing", True),
        ("optional", "own", True),
        ("optional", "stranger", False),
        ("required", "nothing", False),
        ("required", "own", True),
        ("required", "stranger", False),
    ],
)
def test_certificates_of_clients(
    authority: Authority, tmp_path: Path, client_auth: ClientAuth, shows: str, trusted: bool
) -> None:
    files, stranger = authority.issue("server"), Authority.make(tmp_path / "b").issue("stranger")
    shown = {"nothing": TlsFiles(), "own": authority.issue("client"), "stranger": stranger}[shows]
    client = client_context(TlsFiles(str(authority.ca), shown.cert, shown.key))
    server = server_context(files, client_auth)
    if trusted:
        shake(client, server)
    else:
        with pytest.raises(ssl.SSLError):
            shake(client, server)


def test_a_server_is_checked_by_its_authority_and_its_name(authority: Authority, tmp_path: Path) -> None:
    server, stranger = server_context(authority.issue("server")), Authority.make(tmp_path / "b")
    shake(client_context(TlsFiles(str(authority.ca))), server, "localhost")
    for ca, host in ((str(stranger.ca), "localhost"), (str(authority.ca), "10.0.0.5"), ("", "localhost")):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(client_context(TlsFiles(ca)), server, host)


def test_old_protocols_and_weak_ciphers_are_not_spoken(authority: Authority) -> None:
    files = authority.issue("server")
    server = server_context(files)
    assert {cipher["protocol"] for cipher in server.current.get_ciphers()} == {"TLSv1.2", "TLSv1.3"}
    for change in ("minimum", "ciphers"):
        client = ssl.create_default_context(cafile=files.ca)
        if change == "minimum":
            client.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning):
                client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
        else:
            client.maximum_version = ssl.TLSVersion.TLSv1_2
            client.set_ciphers("AES128-SHA256:ECDHE-RSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA256")
        with pytest.raises(ssl.SSLError):
            shake(client, server)
    client = ssl.create_default_context(cafile=files.ca)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(client, server).version() == "TLSv1.2"


def test_a_node_whose_certificate_others_would_refuse_does_not_start(authority: Authority, tmp_path: Path) -> None:
    files, stranger = authority.issue("node"), Authority.make(tmp_path / "b").issue("node")
    node_context(files, "required", "127.0.0.1")
    with pytest.raises(
        BadConfig, match=r"^cert_file: .* would refuse .*node\.pem for 10\.0\.0\.5: IP address mismatch"
    ):
        node_context(files, "required", "10.0.0.5")
    with pytest.raises(BadConfig, match=r"would refuse .* unable to get local issuer certificate"):
        node_context(TlsFiles(files.ca, stranger.cert, stranger.key), "required", "127.0.0.1")


def test_an_expired_certificate_is_a_warning(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    node_context(authority.issue("node", valid=-timedelta(days=1)), "required", "127.0.0.1")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "certificate has expired" in caplog.text


def looked(context: FileContext) -> bool:
    """What a connection does that comes a while after the last one."""
    context._looked_at -= 60
    return context._newest() is context.current


def test_new_files_are_for_new_connections_of_both_ends(authority: Authority) -> None:
    files = authority.issue("server")
    server, client = server_context(files, "required"), client_context(files)
    before, old = serial(client, server), shake(client, server)
    authority.issue("server")
    assert serial(client, server) == before, "so often they are not looked at"
    assert looked(server) and looked(client)
    after = serial(client, server)
    assert after != before
    certificate = old.getpeercert()
    assert certificate is not None and certificate["serialNumber"] == before
    assert not server.refresh(), "nothing has changed since"


def test_an_authority_that_was_taken_away_is_not_trusted_any_more(authority: Authority, tmp_path: Path) -> None:
    files, second = authority.issue("server"), Authority.make(tmp_path / "b")
    client = client_context(TlsFiles(files.ca))
    shake(client, server_context(files))
    Path(files.ca).write_bytes(second.ca.read_bytes())
    assert looked(client)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(client, server_context(TlsFiles(cert=files.cert, key=files.key)))


def test_a_bad_new_file_changes_nothing_and_is_told_once(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue("server")
    server, client = server_context(files), client_context(TlsFiles(files.ca))
    before = serial(client, server)
    other = authority.issue("other")
    Path(files.key).write_bytes(Path(other.key).read_bytes())  # certbot between its two files
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert looked(server)
        assert serial(client, server) == before
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "does not belong to the certificate" in caplog.text
        Path(files.cert).write_bytes(Path(other.cert).read_bytes())
        assert looked(server)
        assert serial(client, server) != before
        away = Path(files.key).rename(f"{files.key}.away")
        for times in (1, 2):
            assert looked(server)
            assert caplog.text.count("cannot be read: No such file") == times
            away.rename(files.key)  # the same one as before: nothing is wrong any more
            assert looked(server)
            away = Path(files.key).rename(away)


def test_files_behind_links_are_noticed(authority: Authority, tmp_path: Path) -> None:
    """Kubernetes replaces a link to the folder of a secret's files."""
    for name in ("one", "two"):
        issued = authority.issue("server")
        (tmp_path / name).mkdir()
        for path in (issued.cert, issued.key):
            Path(path).rename(tmp_path / name / Path(path).name)
    data = tmp_path / "data"
    data.symlink_to("one")
    files = TlsFiles(cert=str(data / "server.pem"), key=str(data / "server.key"))
    server, client = server_context(files), client_context(TlsFiles(str(authority.ca)))
    before = serial(client, server)
    (tmp_path / "staged").symlink_to("two")
    os.replace(tmp_path / "staged", data)
    assert server.refresh()
    assert serial(client, server) != before


def test_an_expiry_is_that_of_the_first_to_expire(authority: Authority) -> None:
    soon, late = authority.issue("soon", valid=timedelta(days=2)), authority.issue("late", valid=timedelta(days=9))
    late_s = expiry_of(late.cert)
    assert late_s - expiry_of(soon.cert) == pytest.approx(7 * 86_400, abs=60)
    with Path(soon.cert).open("ab") as file:
        file.write(Path(late.cert).read_bytes())
    assert late_s - expiry_of(soon.cert) == pytest.approx(7 * 86_400, abs=60)
    for path in ("/none.pem", late.key):
        with pytest.raises(BadConfig, match="has no certificates in PEM form"):
            expiry_of(path)
