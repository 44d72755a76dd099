"""A server on this machine is never asked through a proxy of the environment; others are, as before."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.client import AsyncClient, Client

PROXY = "http://proxy.test:3128"


@pytest.fixture(params=["upper", "lower"])
def proxies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "DUEMQ_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name if request.param == "upper" else name.lower(), PROXY)


def is_direct(client: Any, url: str | None = None) -> bool:
    """Whether a request to this URL, or to that of the client, takes no proxy."""
    http = client._http
    direct: bool = http._transport_for_url(httpx.URL(url or http.base_url)) is http._transport
    return direct


@pytest.mark.usefixtures("proxies")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8787",
        "http://127.9.9.9:1",
        "http://localhost:8787",
        "http://duemq.localhost:8787",
        "http://LocalHost.:8787",
        "http://[::1]:8787",
        "http://[::ffff:127.0.0.1]:8787",
        "http://0.0.0.0:8787",
        "https://localhost:8787",
        "127.0.0.1:8787",
        None,
    ],
)
def test_this_machine_is_reached_directly(url: str | None) -> None:
    with Client(url, "s3cret") as client:
        assert is_direct(client)

    async def scenario() -> None:
        async with AsyncClient(url, "s3cret") as aio:
            assert is_direct(aio)

    asyncio.run(scenario())


@pytest.mark.usefixtures("proxies")
@pytest.mark.parametrize("url", ["http://duemq.example:8787", "http://10.0.0.1:8787", "https://localhost.example"])
def test_other_hosts_keep_the_proxies_of_the_environment(url: str) -> None:
    with Client(url) as client:
        assert not is_direct(client, url)


def test_certificates_of_the_environment_are_trusted_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[Any] = []
    real = ssl.create_default_context

    def create(*args: Any, **options: Any) -> ssl.SSLContext:
        loaded.append(options.pop("cafile", None))
        return real(*args, **options)

    monkeypatch.setattr(ssl, "create_default_context", create)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    Client("https://localhost:8787").close()
    assert loaded == [str(tmp_path / "own.pem")]
