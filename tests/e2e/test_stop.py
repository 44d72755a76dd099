"""Stopping: promptly, cleanly, whatever is going on, and nothing is forgotten."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import Server, run, wait_for
from tests.support.patience import PROCESS_S


def test_sigterm_ends_long_polls_and_streams_and_keeps_what_is_pending(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    later = server.send("t", payload="later", deliver_after="1h")
    soon = server.send("t", payload="soon", deliver_after="20s")
    opened = httpx.Client(base_url=server.url, timeout=300)
    with opened, ThreadPoolExecutor(2) as pool:
        with opened.stream("GET", "/v1/topics/t/records", headers={"Accept": "text/event-stream"}) as stream:
            poll = pool.submit(opened.get, "/v1/topics/t/records?wait=60s")
            events = pool.submit(lambda: list(stream.iter_lines()))
            # Both are being served once the server has answered a request that came after them.
            assert stream.status_code == server.call("GET", "/readyz").status_code == 200
            started = time.monotonic()
            assert server.stop() == 0, server.log
            assert time.monotonic() - started < 50  # and not the 60 s of the long poll
            assert poll.result().json()["records"] == []
            assert not any(line.startswith("data:") for line in events.result())
    assert "Traceback" not in server.log

    server.start()
    page = server.call("GET", "/v1/topics/t/records?wait=60s").json()
    assert [record["headers"]["duemq-id"] for record in page["records"]] == [soon]
    assert server.state(later)["status"] == "scheduled"


@pytest.mark.slow
def test_ctrl_c_again_while_it_stops(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    server.process.send_signal(signal.SIGINT)
    wait_for(lambda: "duemq stops" in server.log, "the first one to be heard")
    assert server.stop(signal.SIGINT) in (0, -signal.SIGINT)  # the latter where it had just finished
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_ctrl_c_while_it_starts(new_server: Callable[..., Server]) -> None:
    server = new_server().spawn()
    wait_for((server.data / "lock").exists, "the folder to be taken", PROCESS_S)
    assert server.stop(signal.SIGINT) == 0, server.log
    assert "Traceback" not in server.log
    server.start()


def test_what_was_denied_right_before_a_stop_is_in_the_trail(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--set", "http.access=keys") as server:
        server.start()
        made = run("keys", "create", "ops", "--scope", "admin", "--yes", "--data", tmp_path / "data", url=server.url)
        key = {"X-API-Key": made.stdout.strip()}
        guess = httpx.get(server.url + "/v1/limits", headers={"X-API-Key": "duemq_guess"}, timeout=60)
        assert guess.status_code == 401
        assert server.stop(signal.SIGINT) == 0
        assert "not in the trail" not in server.log
        server.start()
        entries = httpx.get(server.url + "/v1/trail", headers=key, timeout=60).json()["entries"]
        assert [entry["action"] for entry in entries if entry["code"] == "unauthorised"] == ["GET /v1/limits"]
