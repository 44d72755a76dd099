"""A start that cannot be right is refused with one line that says what to do, and changes nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, free_port, run

pytestmark = pytest.mark.slow  # starts a server for each test


def refused(*arguments: object) -> str:
    """The one line that `duemq serve` ends with."""
    ended = run("serve", *arguments)
    assert ended.returncode == 1, (ended.returncode, ended.stdout, ended.stderr)
    assert ended.stdout == ""
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("duemq: ")
    return line


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_on_one_folder(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    line = refused("--data", server.data, "--listen", f"127.0.0.1:{free_port()}")
    assert f"process {server.process.pid}" in line
    assert "--data" in line
    verified = run("verify", "--data", server.data)
    assert verified.returncode == 1
    assert f"process {server.process.pid}" in verified.stderr
    id_ = server.send("t", payload="still here", deliver_after=50)
    records = server.call("GET", "/v1/topics/t/records?wait=60s").json()["records"]
    assert [record["headers"]["duemq-id"] for record in records] == [id_]


@pytest.mark.parametrize(
    ("change", "advice"),
    [({"version": 999}, "newer duemq"), ({"format": "somebody else's"}, "--data")],
)
def test_a_folder_of_another_format(new_server: Callable[..., Server], change: dict[str, object], advice: str) -> None:
    server = new_server().start()
    assert server.stop() == 0
    meta = server.data / "duemq.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | change))
    before = contents(server.data) | {"lock": b""}
    assert advice in refused("--data", server.data, "--listen", f"127.0.0.1:{free_port()}")
    assert contents(server.data) | {"lock": b""} == before


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "--data" in refused("--data", tmp_path, "--listen", f"127.0.0.1:{free_port()}")
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("--data", tmp_path / "data", "--listen", address)
    assert address in line
    assert "--listen" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("toml", "options", "key"),
    [
        ("[limits]\nmax_delay = 'soon'", [], "limits.max_delay"),
        ("[limit]\nmax_delay = '1y'", [], "limit"),
        ("", ["--set", "storage.flush_interval=1"], "storage.flush_interval"),
        ("", ["--listen", "nowhere"], "listen"),
        ("not toml", [], "duemq.toml"),
    ],
)
def test_a_bad_setting(tmp_path: Path, toml: str, options: list[str], key: str) -> None:
    config = tmp_path / "duemq.toml"
    config.write_text(toml)
    assert key in refused("--data", tmp_path / "data", "--config", config, *options)
    assert not (tmp_path / "data").exists()
