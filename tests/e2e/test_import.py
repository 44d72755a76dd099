"""Files of messages handed over to a real server: by HTTP and by the command line, across kills."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from tests.e2e.server import Server, run, wait_for
from tests.support.shard.import_schedule import write_messages

pytestmark = pytest.mark.slow

TOPIC, COUNT = "orders", 9_000  # more than two row groups


def drafts(window: int) -> list[Draft]:
    return [
        Draft(TOPIC, b"far %d" % n, window + n // 4, b"k%d" % (n % 7), labels=(f"of-{n % 3}",)) for n in range(COUNT)
    ]


def window_ahead(windows: int) -> int:
    return (int(time.time() * 1000) // WINDOW_MS + windows) * WINDOW_MS


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


def test_imported_messages_are_messages(new_server: Callable[..., Server], shared: Path) -> None:
    server = new_server("--set", f"delay_files.import_from={shared}").start()
    window = window_ahead(5)
    write_messages(shared / "a.parquet", drafts(window))
    answer = server.call("POST", "/v1/imports", {"path": str(shared / "a.parquet")})
    assert (answer.status_code, answer.json()["state"], answer.json()["rows"]) == (202, "pending", COUNT)
    where = answer.url.join(answer.headers["Location"]).path
    wait_for(lambda: server.call("GET", where).json().get("state") == "imported", "the import")
    (shared / "a.parquet").unlink()
    server.kill()
    server.start()

    assert server.call("GET", where).json()["state"] == "imported"
    listed = server.call("GET", f"/v1/messages?topic={TOPIC}&label=of-1&limit=1000").json()["messages"]
    assert len(listed) == 1_000
    ids = [message["id"] for message in listed]
    found = server.call("GET", f"/v1/messages/{ids[999]}").json()
    assert (found["status"], found["payload"], found["key"]) == ("scheduled", f"far {999 * 3 + 1}", f"k{2_998 % 7}")
    assert found["deliver_at_ms"] == window + 2_998 // 4

    assert server.call("DELETE", f"/v1/messages/{ids[0]}").json()["status"] == "cancelled"
    assert server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_after": "1s"}).status_code == 200
    assert server.call("POST", f"/v1/messages/{ids[2]}:deliver-now").status_code == 200
    report = server.call("POST", "/v1/messages:cancel", {"filter": {"topic": TOPIC, "label": "of-2"}}).json()
    assert report["counts"]["cancelled"] == COUNT // 3
    server.kill()
    server.start()
    read = f"/v1/topics/{TOPIC}/records?max=10"
    wait_for(lambda: len(server.call("GET", read).json().get("records", ())) == 2, "both deliveries")
    assert server.call("GET", f"/v1/messages/{ids[0]}").json()["status"] == "cancelled"
    assert server.stop() == 0, server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{COUNT - COUNT // 3 - 3} pending" in checked.stdout


def test_the_command_line_hands_files_over(new_server: Callable[..., Server], shared: Path) -> None:
    server = new_server("--set", f"delay_files.import_from={shared}").start()
    window = window_ahead(3)
    for number in range(3):
        write_messages(shared / f"{number}.parquet", drafts(window + number * WINDOW_MS))
    done = run("import", shared, url=server.url)
    assert done.returncode == 0, done.stderr
    assert f"{3 * COUNT:,} messages in 3 files imported" in done.stdout
    again = run("import", shared, "--json", url=server.url)
    assert again.returncode == 0, again.stderr
    assert [one["state"] for one in orjson.loads(again.stdout)["imports"]] == ["imported"] * 3
    assert server.call("GET", "/v1/cluster").json()["shards"][0]["pending"] == 3 * COUNT

    write_messages(shared / "wrong" / "w.parquet", [*drafts(window), Draft("no topic", b"", window + COUNT)])
    refused = run("import", shared / "wrong", url=server.url)
    assert refused.returncode == 7
    assert f"row {COUNT}, column topic" in refused.stderr
    told = server.call("POST", "/v1/imports", {"path": str(shared / "wrong" / "w.parquet")}).json()
    assert (told["code"], told["row"], told["field"]) == ("bad_delay_file", COUNT, "topic")
    nobody = run("import", shared / "nothing", url=server.url)
    assert nobody.returncode == 2 and "there is no file" in nobody.stderr


def test_what_cannot_be_imported_is_refused_by_its_field(new_server: Callable[..., Server], shared: Path) -> None:
    server = new_server("--set", f"delay_files.import_from={shared}").start()
    near = shared / "near.parquet"
    write_messages(near, drafts(window_ahead(0)))
    write_messages(shared / "far.parquet", drafts(window_ahead(24 * 2 * 365 * 20)))
    (shared / "text.parquet").write_text("no")

    def code(body: object) -> tuple[str, str]:
        problem = server.call("POST", "/v1/imports", body).json()
        return problem["code"], problem["field"]

    assert code({"path": str(near)}) == ("past_due", "path")
    assert code({"path": str(shared / "far.parquet")}) == ("delay_too_long", "path")
    assert code({"path": str(shared / "text.parquet")}) == ("bad_delay_file", "path")
    assert code({"path": str(shared / "none.parquet")}) == ("bad_delay_file", "path")
    assert code({"path": "/etc/passwd"}) == ("forbidden", "path")
    assert code({"path": f"{shared}/../x"}) == ("forbidden", "path")
    assert code({"path": "near.parquet"}) == ("bad_field", "path")
    assert code({"path": str(near), "link": 1}) == ("bad_field", "link")
    assert code({"path": str(near), "rows": 5}) == ("bad_field", "sha256")
    assert code({"path": str(near), "colour": 5}) == ("unknown_field", "colour")
    assert server.call("GET", "/v1/imports/0-99").json()["code"] == "unknown_import"
    assert server.call("GET", "/v1/imports/x").json()["code"] == "unknown_import"
    assert server.call("GET", "/v1/imports?state=old").json()["code"] == "bad_query"
    assert server.call("GET", "/v1/imports").json() == {"imports": [], "count": 0}


def test_nothing_is_imported_where_no_folder_is_named(new_server: Callable[..., Server], shared: Path) -> None:
    server = new_server().start()
    write_messages(shared / "a.parquet", drafts(window_ahead(5)))
    refused = run("import", shared, url=server.url)
    assert refused.returncode == 7 and "delay_files.import_from" in refused.stderr


def test_files_are_imported_once_although_the_server_is_killed_again_and_again(
    new_server: Callable[..., Server], shared: Path
) -> None:
    server = new_server("--set", f"delay_files.import_from={shared}").start()
    window, files, seed = window_ahead(4), 24, random.Random(7)
    for number in range(files):
        write_messages(shared / f"{number:02d}.parquet", drafts(window + number % 3 * WINDOW_MS)[number:])
    total = sum(COUNT - number for number in range(files))

    def imported() -> int:
        return len(server.call("GET", "/v1/imports?state=imported").json()["imports"])

    for _ in range(6):
        done = run("import", "--no-wait", shared, url=server.url)
        assert done.returncode == 0, done.stderr
        time.sleep(seed.random())
        server.kill()
        server.start()
    wait_for(lambda: imported() == files, "all imports")
    assert server.call("GET", "/v1/cluster").json()["shards"][0]["pending"] == total
    assert server.call("GET", "/v1/imports?state=rejected").json() == {"imports": [], "count": 0}
    assert server.stop() == 0, server.log
    names = sorted(path.name for path in (server.data / "shards" / "000" / "far").rglob("*.*"))
    assert len(names) == files and all(name.startswith("a") for name in names)
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
