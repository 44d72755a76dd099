"""`duemq health`: whom it asks, what it makes of the answer, and how little it needs for that."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from duemq.cli.health import LISTEN, NODE_LISTEN, RELAY_LISTEN, health
from duemq.cli.settings.settings import Settings

READY = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"status":"ready"}'
NOT_READY = b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"detail":"shard 3 is stopped","status":503}'


class Answering:
    """Answers each request with the same bytes; without any it accepts no connection."""

    def __init__(self, host: str, answer: bytes | None) -> None:
        self.socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self.socket.getsockname()[1]
        self.asked: list[bytes] = []
        self._answer = answer
        if answer is not None:
            Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(10_000))
                connection.sendall(self._answer or b"")


Serve = Callable[..., Answering]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(answer: bytes | None, host: str = "127.0.0.1") -> Answering:
            made = Answering(host, answer)
            stack.callback(made.socket.close)
            stack.callback(made.socket.shutdown, socket.SHUT_RDWR)  # wakes up who waits for connections
            return made

        yield start


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens where the settings say, and the environment names a proxy that nobody has."""
    for name in ("DUEMQ_CONFIG", "DUEMQ_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("DUEMQ_LISTEN", "DUEMQ_NODE__LISTEN", "DUEMQ_RELAY__LISTEN"):
        monkeypatch.setenv(name, "127.0.0.1:1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")


def test_it_asks_whether_the_server_is_ready_or_alive(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(READY)
    address = f"127.0.0.1:{server.port}"
    assert health(["--listen", address]) == health(["--listen", address, "--live"]) == 0
    assert capsys.readouterr().out == "ready\nalive\n"
    first, second = server.asked
    assert first.startswith(b"GET /readyz HTTP/1.1\r\n") and second.startswith(b"GET /livez HTTP/1.1\r\n")
    assert f"\r\nHost: {address}\r\n".encode() in first


def test_what_is_not_200_is_1_and_the_reason(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    for answer, told in ((NOT_READY, "shard 3 is stopped"), (b"SSH-2.0\r\n", "SSH-2.0"), (b"", "nothing")):
        assert health(["--listen", f"127.0.0.1:{serve(answer).port}"]) == 1
        assert told in capsys.readouterr().err


def test_a_server_that_does_not_answer_in_time_is_not_well(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert health(["--listen", f"127.0.0.1:{serve(None).port}", "--within", "0.1"]) == 1
    assert "did not answer" in capsys.readouterr().err


def test_of_several_addresses_all_must_be_well(serve: Serve) -> None:
    well, ill = (f"127.0.0.1:{serve(answer).port}" for answer in (READY, NOT_READY))
    assert health(["--listen", well, "--listen", well]) == 0
    assert health(["--listen", well, "--listen", ill]) == 1


@pytest.mark.parametrize(("listen", "host"), [("0.0.0.0", "127.0.0.1"), ("[::]", "::1"), ("[::1]", "::1")])
def test_every_address_of_the_machine_is_asked_at_the_loopback(
    listen: str, host: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUEMQ_LISTEN", f"{listen}:{serve(READY, host).port}")
    assert health([]) == 0


def test_a_node_is_found_where_it_listens(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health([]) == 1
    assert "no server listens at 127.0.0.1:1, 127.0.0.1:1 or 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("DUEMQ_NODE__LISTEN", f"127.0.0.1:{serve(READY).port}")
    assert health([]) == 0
    # What answers at `listen` decides, ill or not.
    monkeypatch.setenv("DUEMQ_LISTEN", f"127.0.0.1:{serve(NOT_READY).port}")
    assert health([]) == 1

    monkeypatch.delenv("DUEMQ_NODE__LISTEN")
    monkeypatch.setenv("DUEMQ_LISTEN", "127.0.0.1:1")
    settings = tmp_path / "duemq.toml"
    settings.write_text(f'listen = "127.0.0.1:1"\n[node]\nlisten = "127.0.0.1:{serve(READY).port}"\n')
    assert health(["--config", str(settings)]) == 0
    monkeypatch.setenv("DUEMQ_CONFIG", str(settings))
    assert health([]) == 0
    assert health(["--config", str(tmp_path / "none")]) == 1


def test_a_relay_is_found_where_it_listens(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = f"127.0.0.1:{serve(READY).port}"
    monkeypatch.setenv("DUEMQ_RELAY__LISTEN", address)
    assert health(["--live"]) == 0
    monkeypatch.delenv("DUEMQ_RELAY__LISTEN")
    settings = tmp_path / "duemq.toml"
    settings.write_text(f'[relay]\nlisten = "{address}"\n')
    assert health(["--config", str(settings)]) == 0


def test_without_settings_it_asks_where_servers_listen_by_default() -> None:
    defaults = Settings()
    assert (LISTEN, NODE_LISTEN, RELAY_LISTEN) == (defaults.listen, defaults.node.listen, defaults.relay.listen)


def test_an_address_that_nobody_can_be_reached_at_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("127.0.0.1:0", "8787", "h:p"):
        assert health(["--listen", address]) == 1
        assert f"{address} is not a server's address" in capsys.readouterr().err


def test_a_probe_starts_without_what_other_commands_need(serve: Serve) -> None:
    script = "import sys, duemq.cli.main as it\ntry: it.main()\nfinally: print(*sys.modules)"
    words = ["health", "--listen", f"127.0.0.1:{serve(READY).port}"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("ready\n")
    assert not set(done.stdout.split()) & {"typer", "rich", "pydantic", "httpx", "asyncio", "http.client", "orjson"}
