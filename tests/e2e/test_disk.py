"""A disk that is full, or fails: senders are refused, what was accepted stays and is delivered."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, run, wait_for
from tests.support.patience import PROCESS_S

OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


def need_own_mounts() -> None:
    """Skip the test where this machine lets nobody mount anything; fail it in CI."""
    tried = subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(tried.stderr, pytrace=False)
        pytest.skip(tried.stderr)


def test_a_full_disk_refuses_senders_and_nobody_else(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    soon = server.send("t", payload="soon", deliver_after="2s")
    later = server.send("t", payload="later", deliver_after="1h")
    assert server.stop() == 0
    server.start("--set", "storage.min_free_bytes=1000PiB")
    for body in ({"topic": "t"}, {"topic": "t", "deliver_after": "1s"}):
        refused = server.call("POST", "/v1/messages", body)
        assert (refused.status_code, refused.json()["code"]) == (503, "disk_full")
        assert int(refused.headers["Retry-After"]) > 0
    assert server.call("POST", "/v1/messages:batch", {"messages": [{"topic": "t"}]}).status_code == 503
    assert server.state(later)["status"] == "scheduled"
    assert server.call("DELETE", f"/v1/messages/{later}").json()["status"] == "cancelled"
    page = server.call("GET", "/v1/topics/t/records?wait=60s").json()
    assert [record["headers"]["duemq-id"] for record in page["records"]] == [soon]
    assert server.is_ready()


def test_failing_writes_are_survived_in_the_same_process(new_server: Callable[..., Server]) -> None:
    """Files are not allowed to grow any more: every write fails, as on a broken disk, until that is lifted."""
    server = new_server("--set", "storage.flush_interval_s=0.5").start()
    accepted = [server.send("t", payload="p" * 200, deliver_after=ms) for ms in range(500, 3_500, 100)]
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1_000, unlimited[1]))

    refused = Counter[str]()
    started = time.monotonic()
    while time.monotonic() - started < 4.0 or not refused:
        answer = server.call("POST", "/v1/messages", {"topic": "t", "payload": "q" * 200, "deliver_after": "1s"})
        if answer.status_code == 201:
            accepted.append(answer.json()["id"])
        else:
            assert answer.status_code in (503, 504), answer.text
            assert (int(answer.headers.get("Retry-After", 0)) > 0) == (answer.status_code == 503)
            refused[answer.json()["code"]] += 1
        assert server.process.poll() is None, server.log
        assert time.monotonic() - started < 20, "writes go on"
    assert refused["outcome_unknown"], "whether what failed is on the disk, nobody knew"
    unready = server.call("GET", "/readyz")
    assert unready.status_code == 503
    assert unready.json()["reason"] == "reopening", unready.text
    assert server.call("GET", "/healthz").status_code == 200

    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    wait_for(server.is_ready, "serving again", PROCESS_S)
    accepted.append(server.send("t", payload="after", deliver_after="100ms"))
    wait_for(lambda: set(accepted) <= set(server.delivered_ids("t")), "all that was accepted")
    delivered = server.delivered_ids("t")
    assert len(set(delivered)) == len(delivered)
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_disk_that_fills_up_refuses_senders_until_there_is_room(new_server: Callable[..., Server]) -> None:
    """On a small file system of its own, which only the server and /proc see."""
    need_own_mounts()
    marks = ("purge_percent=75", "shorten_percent=85", "refuse_percent=90", "min_free_bytes=1MiB")
    server = new_server(*(part for mark in marks for part in ("--set", f"storage.{mark}")))
    mount = 'mount -t tmpfs -o size=256m tmpfs "$0" && exec "$@"'
    server.data.mkdir()
    server.command = [*OWN_MOUNTS, "sh", "-c", mount, server.data, *server.command]
    server.start()
    accepted = [server.send("t", payload="soon", deliver_after="1s")]
    disk = Path(f"/proc/{server.process.pid}/root{server.data}")
    ballast = disk / "ballast"

    def fill(percent: int) -> None:
        """Until about so much of the disk is in use."""
        stat = os.statvfs(disk)
        whole, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        size = ballast.stat().st_size if ballast.exists() else 0
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size + free - whole * (100 - percent) // 100)

    def metric(name: str) -> float:
        return next(
            float(line.split()[1]) for line in server.call("GET", "/metrics").text.splitlines() if line.startswith(name)
        )

    fill(93)
    wait_for(lambda: metric("duemq_disk_watermark") == 3, "the mark")
    refused = server.call("POST", "/v1/messages", {"topic": "t", "deliver_after": "1s"})
    assert (refused.status_code, refused.json()["code"]) == (503, "disk_full")
    assert "storage.refuse_percent" in refused.json()["detail"] and str(server.data) in refused.json()["detail"]
    assert int(refused.headers["Retry-After"]) > 0
    wait_for(lambda: server.delivered_ids("t") == accepted, "what was accepted")
    assert server.is_ready()

    ballast.unlink()
    wait_for(lambda: metric("duemq_disk_watermark") == 0, "the mark to be left")
    assert metric("duemq_disk_used_ratio") < 0.5
    accepted.append(server.send("t", payload="more", deliver_after="100ms"))
    wait_for(lambda: server.delivered_ids("t") == accepted, "the message after it")
    assert server.stop() == 0, server.log
