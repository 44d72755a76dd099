"""From settings to TLS: what belongs together, what is off by default, and how a probe asks a server with TLS."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from duemq.cli.health import health
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.parts import check_http_access, check_node_access, http_tls, node_client_tls, node_tls
from duemq.model.errors import BadConfig
from duemq.tls.certificates import expiry_of
from duemq.tls.contexts import server_context
from duemq.tls.files import TlsFiles
from tests.support.patience import WITHIN_S
from tests.support.tls.certificates import Authority

EXPIRY = "duemq_tls_certificate_expiry_timestamp_seconds"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.load(overrides=sections)


def of_http(files: TlsFiles) -> dict[str, str]:
    return {"cert_file": files.cert, "key_file": files.key}


def of_node(files: TlsFiles) -> dict[str, str]:
    return {"ca_file": files.ca, "cert_file": files.cert, "key_file": files.key}


async def http(given: Settings, metrics: CollectorRegistry | None = None) -> Any:
    return http_tls(given, metrics or CollectorRegistry())


def test_without_certificates_there_is_no_tls() -> None:
    async def scenario() -> None:
        assert await http(Settings()) is None
        assert node_tls(Settings(), CollectorRegistry(), "10.0.0.5") is None
        assert node_client_tls(Settings()) is None

    asyncio.run(scenario())


def test_what_belongs_together_is_asked_for(authority: Authority) -> None:
    files = authority.issue("server")
    own = of_http(files)
    for given, told in (
        ({"key_file": files.key}, r"^http\.cert_file is not set"),
        ({"client_auth": "required"}, r"^http\.cert_file is not set"),
        ({"cert_file": files.cert}, r"^http\.cert_file and http\.key_file belong together"),
        (own | {"client_auth": "optional"}, r"^http\.client_ca_file is not set"),
        (own | {"client_ca_file": files.ca}, r"set http\.client_auth = optional or required"),
        (own | {"cert_file": "/none"}, r"^http\.cert_file: /none cannot be read"),
    ):
        with pytest.raises(BadConfig, match=told):
            asyncio.run(http(settings(http=given)))

    async def node(given: dict[str, str]) -> None:
        node_tls(settings(node=given), CollectorRegistry(), "127.0.0.1")

    for given, told in (
        ({"cert_file": files.cert, "key_file": files.key}, r"^node\.ca_file is not set"),
        ({"ca_file": files.ca, "cert_file": files.cert}, r"^node\.cert_file and node\.key_file belong together"),
    ):
        with pytest.raises(BadConfig, match=told):
            asyncio.run(node(given))
    with pytest.raises(BadConfig, match=r"^node\.ca_file: /none cannot be read"):
        node_client_tls(settings(node={"ca_file": "/none"}))
    with pytest.raises(BadConfig, match=r"http\.client_auth"):
        settings(http={"client_auth": "perhaps"})


def test_tls_is_no_access_control(authority: Authority) -> None:
    files = authority.issue("server")
    mutual = of_http(files) | {"client_ca_file": files.ca, "client_auth": "required"}
    beyond = Settings.load(overrides={"listen": "0.0.0.0:1", "http": mutual, "node": of_node(files)})
    with pytest.raises(BadConfig, match=r"http\.api_keys is not set"):
        check_http_access(beyond)
    with pytest.raises(BadConfig, match=r"node\.token is not set"):
        check_node_access(beyond, "0.0.0.0:1")


def test_the_expiry_is_that_of_the_certificate_in_use_and_sighup_takes_the_new_one(authority: Authority) -> None:
    files = authority.issue("server", valid=timedelta(days=3))

    async def scenario() -> None:
        metrics = CollectorRegistry()
        tls = await http(settings(http=of_http(files)), metrics)

        def shown() -> float | None:
            return metrics.get_sample_value(EXPIRY, {"setting": "http.cert_file"})

        before = expiry_of(files.cert)
        assert shown() == before
        authority.issue("server", valid=timedelta(days=9))
        assert shown() == before
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(WITHIN_S):
            while shown() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert shown() == expiry_of(files.cert) == pytest.approx(before + 6 * 86_400, abs=60)
        assert tls.context.current is not None

    asyncio.run(scenario())


def test_an_expired_certificate_is_told_at_the_start_and_when_it_comes(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(files: TlsFiles) -> None:
        tls = await http(settings(http=of_http(files)))
        authority.issue("server", valid=-timedelta(days=2))
        tls.refresh()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario(authority.issue("server", valid=-timedelta(days=1))))
    assert ["has expired" in record.getMessage() for record in caplog.records] == [True, True]


def probed(files: TlsFiles, client_ca: str, ask: Callable[[int], int]) -> int:
    """What `ask` says of a server that answers one request with 200, over TLS."""
    context = server_context(
        TlsFiles(client_ca, files.cert, files.key), "required" if client_ca else "none"
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(10_000)
                    secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            except ssl.SSLError:
                pass

        thread = Thread(target=serve)
        thread.start()
        code = ask(listener.getsockname()[1])
        thread.join()
    return code


def test_a_probe_asks_by_tls(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what the settings say, or the address; whoever signed the certificate, and whomever it names."""
    files = authority.issue("server", "duemq.example.com")
    config = tmp_path / "duemq.toml"

    def by_settings(section: str) -> Callable[[int], int]:
        def ask(port: int) -> int:
            where = (
                f'[node]\nlisten = "127.0.0.1:{port}"\n'
                if section == "node"
                else f'listen = "127.0.0.1:{port}"\n[http]\n'
            )
            other = 'listen = "127.0.0.1:1"\n' if section == "node" else ""
            config.write_text(f'{other}{where}cert_file = "{files.cert}"\nkey_file = "{files.key}"\n')
            return health(["--config", str(config)])

        return ask

    def by_address(port: int) -> int:
        return health(["--listen", f"https://127.0.0.1:{port}"])

    assert probed(files, "", by_settings("http")) == 0
    assert probed(files, "", by_address) == 0
    assert probed(files, files.ca, by_settings("node")) == 0, "a node is shown its own certificate"
    assert probed(files, files.ca, by_address) == 1
    assert "did not answer" in capsys.readouterr().err
    monkeypatch.setenv("DUEMQ_CERT_FILE", files.cert)
    monkeypatch.setenv("DUEMQ_KEY_FILE", files.key)
    assert probed(files, files.ca, by_address) == 0
