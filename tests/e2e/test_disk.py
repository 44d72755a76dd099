"""A disk that is full, or fails: senders are refused, what was accepted stays and is delivered."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable

from tests.e2e.server import Server, run, wait_for


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
    page = server.call("GET", "/v1/topics/t/records?wait=10s").json()
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
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["Retry-After"]) > 0
            refused[answer.json()["code"]] += 1
        assert server.process.poll() is None, server.log
        assert time.monotonic() - started < 20, "writes go on"
    unready = server.call("GET", "/readyz")
    assert unready.status_code == 503
    assert "being opened anew" in unready.json()["detail"], unready.text
    assert server.call("GET", "/healthz").status_code == 200

    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    wait_for(server.is_ready, "serving again")
    accepted.append(server.send("t", payload="after", deliver_after="100ms"))
    wait_for(lambda: set(accepted) <= set(server.delivered_ids("t")), "all that was accepted", 15)
    delivered = server.delivered_ids("t")
    assert len(set(delivered)) == len(delivered)
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
