"""Files handed over to a proxy, which has no store: the nodes take them in, and tell it what became of them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from duemq.model.messages.import_command import ImportCommand, shard_of_content
from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from tests.support.http.proxy_site import SHARDS, proxy_site
from tests.support.shard.import_schedule import write_messages


def write(path: Path, window: int, text: str = "") -> ImportCommand:
    return write_messages(path, [Draft("orders", b"%d %s" % (n, text.encode()), window + n) for n in range(20)])


def settled(http: httpx.Client, id_: str) -> dict[str, object]:
    while True:
        answer = http.get(f"/v1/imports/{id_}")
        assert answer.status_code in (200, 503), answer.text  # 503: the node is busy
        found: dict[str, object] = answer.json()
        if found.get("state", "pending") != "pending":
            return found
        time.sleep(0.02)


@pytest.mark.slow
def test_a_proxy_hands_files_over_and_tells_what_became_of_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    window = (int(time.time() * 1000) // WINDOW_MS + 5) * WINDOW_MS
    files = [write(shared / f"{n}.parquet", window, str(n)) for n in range(4)]
    with proxy_site(tmp_path / "data") as url, httpx.Client(base_url=url, timeout=300) as http:
        ids = []
        for import_command in files:
            answer = http.post("/v1/imports", json={"path": import_command.path})
            assert answer.status_code == 202 and not answer.json()["duplicate"], answer.text
            assert answer.json()["shard"] == shard_of_content(import_command.sha256, SHARDS)
            ids.append(answer.json()["id"])
        assert [settled(http, id_)["state"] for id_ in ids] == ["imported"] * 4
        found = http.get("/v1/messages?topic=orders&limit=1000").json()["messages"]
        assert len(found) == 80
        assert http.delete(f"/v1/messages/{found[0]['id']}").json()["status"] == "cancelled"

        said = {name: getattr(files[0], name) for name in ("path", "sha256", "size", "window", "rows")}
        again = http.post("/v1/imports", json=said)
        assert (again.status_code, again.json()["id"], again.json()["duplicate"]) == (200, ids[0], True)

        wrong = replace(write(shared / "w.parquet", window + WINDOW_MS), rows=21)
        said = {name: getattr(wrong, name) for name in ("path", "sha256", "size", "window", "rows")}
        refused = settled(http, http.post("/v1/imports", json=said).json()["id"])
        assert (refused["state"], "rows 20" in str(refused["reason"])) == ("rejected", True)
        states = {one["id"]: one["state"] for one in http.get("/v1/imports").json()["imports"]}
        assert states == dict.fromkeys(ids, "imported") | {str(refused["id"]): "rejected"}
        listed = http.get("/v1/imports?state=rejected").json()["imports"]
        assert [one["id"] for one in listed] == [refused["id"]]
        assert http.get("/v1/imports?state=pending").json()["imports"] == []
        counted = http.get("/v1/imports", params={"state": "imported", "below": str(shared / "1"), "limit": 0})
        assert counted.json() == {"imports": [], "count": 1}
        some = http.get("/v1/imports", params={"limit": 3, "below": f"{shared}/"}).json()
        assert (some["count"], len(some["imports"])) == (5, 3)
        assert http.get("/v1/imports?below=/elsewhere&limit=9").json() == {"imports": [], "count": 0}
        assert http.get("/v1/imports?limit=-1").json()["code"] == "bad_query"
        assert http.get("/v1/imports/2-4711").json()["code"] == "unknown_import"
        assert http.get("/v1/imports/99-0").json()["code"] == "unknown_import"
