"""Dead letters and jobs by the command line, on a server of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.server import Server, run, wait_for


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    return new_server().start()


def duemq(server: Server, *arguments: object) -> Any:
    done = run(*arguments, "--json", url=server.url)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expired(server: Server, count: int) -> list[str]:
    """Ids of messages that died: they expired while the server was away."""
    due = int(time.time() * 1000) + 1_500
    ids = [
        server.send("orders", payload=str(n), deliver_at=due, expires_at=due + 1, labels=["eu"]) for n in range(count)
    ]
    server.stop()
    time.sleep(max(due / 1000 + 0.1 - time.time(), 0))
    server.start()
    wait_for(lambda: all(server.state(id_)["status"] == "dead" for id_ in ids), "dead letters")
    return ids


def test_a_dead_letter_is_shown_redriven_as_often_as_allowed_and_purged(new_server: Callable[..., Server]) -> None:
    server = new_server("--set", "topics.max_redrives=1").start()
    one, other = expired(server, 2)
    shown = server.state(one)
    assert shown["reason"] == "expired" and [each["reason"] for each in shown["attempts"]] == ["expired"]
    assert run("dlq", "show", one, url=server.url).stdout.count("expired") >= 2
    assert duemq(server, "dlq", "redrive", one, "--to", "elsewhere")["topic"] == "elsewhere"
    wait_for(lambda: server.records("elsewhere"), "the redriven message")
    (record,) = server.records("elsewhere")
    assert record["payload"] == "0" and record["headers"]["duemq-redrives"] == "1"
    assert record["headers"]["duemq-labels"] == "eu"
    again = run("dlq", "redrive", one, url=server.url)
    assert again.returncode == 3, "delivered: no dead letter any more"
    assert server.call("POST", f"/v1/dlq/{other}:purge").status_code == 200
    assert server.call("POST", f"/v1/dlq/{other}:redrive").json()["code"] == "already_purged"
    purged = server.state(other)
    assert purged["reason"] == "purged (expired)" and "payload" not in purged
    assert not server.call("GET", "/v1/dlq").json()["messages"]


def test_jobs_by_the_command_line(server: Server) -> None:
    ids = expired(server, 3)
    since = ("--dead-from", "2020-01-01T00:00:00Z")
    assert duemq(server, "dlq", "redrive", *since, "--label", "us", "--dry-run")["total"] == 0
    assert duemq(server, "dlq", "redrive", *since, "--label", "eu", "--dry-run")["total"] == 3
    assert run("dlq", "redrive", "--label", "eu", "--yes", url=server.url).returncode == 2, "without a time"
    job = duemq(server, "dlq", "redrive", *since, "--topic", "orders", "--rate", "100", "--yes", "--wait")
    assert (job["state"], job["total"], job["done"]) == ("done", 3, 3)
    wait_for(lambda: len(server.records("orders")) == 3, "the redriven messages")
    late = duemq(server, "dlq", "purge", *ids, "--yes", "--wait")
    assert late["skipped_by_reason"] == {"already_delivered": 3} and late["done"] == 0
    assert [each["id"] for each in duemq(server, "jobs", "ls")["jobs"]] == [late["id"], job["id"]]
    assert run("jobs", "show", "nosuchjob123", url=server.url).returncode == 4
    assert run("jobs", "pause", job["id"], url=server.url).returncode == 7, "it has ended"


def test_pending_messages_are_moved_and_cancelled_by_jobs(server: Server) -> None:
    due = int(time.time() * 1000) + 3_600_000
    ids = [server.send("later", payload="x", deliver_at=due + n) for n in range(5)]

    def run_job(**fields: Any) -> Any:
        job = server.call("POST", "/v1/jobs", fields).json()
        wait_for(lambda: not server.call("GET", f"/v1/jobs/{job['id']}").json()["active"], "the job")
        return server.call("GET", f"/v1/jobs/{job['id']}").json()

    assert run_job(kind="move", filter={"topic": "later"}, shift="-10m")["done"] == 5
    assert [server.state(id_)["deliver_at_ms"] for id_ in ids] == [due + n - 600_000 for n in range(5)]
    paused = server.call("POST", "/v1/jobs", {"kind": "cancel", "filter": {"topic": "later"}, "rate": 1}).json()["id"]
    server.call("POST", f"/v1/jobs/{paused}:pause")
    wait_for(lambda: not server.call("GET", f"/v1/jobs/{paused}").json()["active"], "the pause")
    assert server.call("GET", f"/v1/jobs/{paused}").json()["state"] == "paused"
    done = run_job(kind="deliver-now", ids=ids[:1])
    assert done["done"] + done["skipped"] == 1
    assert server.call("POST", f"/v1/jobs/{paused}:cancel").json()["state"] == "cancelled"
    rest = run_job(kind="cancel", filter={"topic": "later"})
    assert rest["state"] == "done" and not server.call("GET", "/v1/messages?topic=later").json()["messages"]


def test_jobs_over_pending_messages_begin_by_the_command_line(server: Server) -> None:
    due = int(time.time() * 1000) + 3_600_000
    ids = [server.send("by-hand", payload="x", deliver_at=due + n) for n in range(4)]

    def begin(kind: str, *more: str) -> Any:
        return duemq(server, "jobs", "begin", kind, "--topic", "by-hand", *more)

    assert begin("cancel", "--dry-run")["total"] == 4
    assert begin("move", "--shift", "10m", "--yes", "--wait")["done"] == 4
    assert [server.state(id_)["deliver_at_ms"] for id_ in ids] == [due + n + 600_000 for n in range(4)]
    refused = run("jobs", "begin", "cancel", "--topic", "by-hand", url=server.url)
    assert refused.returncode == 2 and "--yes" in refused.stderr
    assert run("job", "begin", "cancel", "--yes", url=server.url).returncode == 2, "an empty filter"
    assert begin("cancel", "--yes", "--wait")["done"] == 4
    assert {server.state(id_)["status"] for id_ in ids} == {"cancelled"}


def test_the_dead_letters_of_a_consumer_group(server: Server) -> None:
    for n in range(4):
        origin = {"x-duemq-topic": "orders", "x-duemq-reason": "retries", "x-duemq-error": "no", "kind": "a"}
        origin |= {"x-duemq-id": f"first-{n}", "x-duemq-partition": "3", "x-duemq-offset": f"{n}"}
        server.send("dlq.billing", payload=str(n), headers=origin | ({"x-duemq-topic": "other"} if n == 3 else {}))
    wait_for(lambda: len(server.records("dlq.billing")) == 4, "the dead letters")
    listed = run("dlq", "ls", "--group", "billing", url=server.url).stdout.splitlines()
    assert [line.split("\t")[2:] for line in listed] == [["orders", "0", "retries", "no"]] * 3 + [
        ["other", "0", "retries", "no"]
    ]
    shown = duemq(server, "dlq", "show", "0:2", "--group", "billing")
    assert (shown["payload"], shown["origin"]["writer"]) == ("2", "consumer")
    first = duemq(server, "dlq", "redrive", "0:1", "--group", "billing", "--yes", "--wait")
    assert first["done"] == 1
    group = ("--group", "billing", "--yes", "--wait")
    job = duemq(server, "dlq", "redrive", *group, "--topic", "orders", "--dead-from", "2020-01-01T00:00:00Z")
    assert job["done"] == 2 and job["skipped_by_reason"] == {"already_redriven": 1}
    wait_for(lambda: len(server.records("orders")) == 3, "the redriven records")
    kept = {record["payload"]: record["headers"]["duemq-redriven-id"] for record in server.records("orders")}
    assert kept == {"0": "first-0", "1": "first-1", "2": "first-2"}
    headers = server.records("orders")[0]["headers"]
    assert headers["x-duemq-redriven-from"] == "dlq.billing/0/1" and headers["kind"] == "a"
    assert headers["x-duemq-redriven-origin"] == "orders/3/1"
    assert not {"x-duemq-topic", "x-duemq-reason"} & headers.keys()
    purged = duemq(server, "dlq", "purge", *group, "--dead-to", int(time.time() * 1000) + 60_000)
    assert purged["done"] == 4 and not server.records("dlq.billing")


def test_a_destinations_dead_letters_go_back_to_it_alone(server: Server) -> None:
    origin = {"x-duemq-topic": "mails", "x-duemq-partition": "0", "x-duemq-offset": "7", "x-duemq-id": "first"}
    server.send("dlq.destination.mail", payload="hello", headers=origin)
    wait_for(lambda: len(server.records("dlq.destination.mail")) == 1, "the dead letter")
    job = duemq(server, "dlq", "redrive", "0:0", "--group", "destination.mail", "--yes", "--wait")
    assert (job["done"], job["topic"]) == (1, "destination.mail")
    wait_for(lambda: len(server.records("destination.mail")) == 1, "the redriven record")
    assert server.records("destination.mail")[0]["headers"]["x-duemq-redriven-origin"] == "mails/0/7"
    everybody = duemq(
        server, "dlq", "redrive", "0:0", "--group", "destination.mail", "--to", "mails", "--yes", "--wait"
    )
    assert everybody["skipped_by_reason"] == {"already_redriven": 1}, "a record is redriven once"
