"""No server that other machines reach starts without access control, unless it is told to."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.node_process import run_node
from duemq.cli.wiring.parts import check_http_access, check_node_access
from duemq.cli.wiring.proxy_process import run_proxy
from duemq.cli.wiring.single_process import serve
from duemq.model.errors import BadConfig

BEYOND = ["0.0.0.0:0", "[::]:0", "10.0.0.5:8787", "duemq.example.com:8787", "[::ffff:10.0.0.5]:8787", "0:0"]
LOOPBACK = ["127.0.0.1:0", "127.8.9.1:0", "[::1]:0", "localhost:0"]


@pytest.mark.parametrize("listen", BEYOND)
def test_an_open_address_needs_a_secret(listen: str) -> None:
    told = r"^http\.api_keys is not set, and .* Set http\.access = \"keys\" or http\.api_keys, .* http\.open = true$"
    with pytest.raises(BadConfig, match=told):
        check_http_access(Settings(listen=listen))
    for http in ({"api_keys": ["first-secret"]}, {"access": "keys"}, {"open": True}):
        check_http_access(Settings.load(overrides={"listen": listen, "http": http}))


@pytest.mark.parametrize("listen", LOOPBACK)
def test_the_loopback_needs_none(listen: str) -> None:
    check_http_access(Settings(listen=listen))
    check_node_access(Settings(), listen)


def settings(folder: Path, **more: Any) -> Settings:
    cluster = {"kafka": {"bootstrap": "127.0.0.1:1"}, "zookeeper": {"hosts": "127.0.0.1:1"}}
    return Settings.load(overrides={"data": folder / "data", "listen": "0.0.0.0:0", **cluster, **more})


def test_serve_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"http\.api_keys is not set, and 0\.0\.0\.0:0"):
        asyncio.run(serve(settings(tmp_path)))
    assert not (tmp_path / "data").exists()


def test_a_proxy_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"http\.api_keys is not set, and 0\.0\.0\.0:0"):
        asyncio.run(run_proxy(settings(tmp_path)))


def test_a_node_does_not_start(tmp_path: Path) -> None:
    node = {"listen": "0.0.0.0:0", "advertise": socket.gethostname()}
    with pytest.raises(BadConfig, match=r"node\.token is not set, and 0\.0\.0\.0:0"):
        asyncio.run(run_node(settings(tmp_path, node=node)))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("value", "is_open"), [(True, True), ("true", True), ("false", False)])
def test_it_is_opened_in_so_many_words(value: object, is_open: bool) -> None:
    assert Settings.load(overrides={"http": {"open": value}}).http.open is is_open


@pytest.mark.parametrize("value", ["yes", "1", "on", "True", 1, ""])
def test_nothing_else_opens_it(value: object) -> None:
    with pytest.raises(BadConfig, match=r"http\.open"):
        Settings.load(overrides={"http": {"open": value}})


def test_a_number_is_no_switch() -> None:
    with pytest.raises(BadConfig, match=r"http\.max_requests.* it is no switch"):
        Settings.load(overrides={"http": {"max_requests": True}})
