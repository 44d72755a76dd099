"""Files handed over together, through a proxy: all of them are in the log or none, and their messages' ids are told."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest

from duemq.client import Admin
from duemq.client.http.errors import Forbidden, NoIds, PastDue, RejectedError, UnknownImport
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.messages.ids import peek
from duemq.model.messages.import_command import ImportCommand, shard_of_content
from duemq.model.timing import WINDOW_MS
from tests.functional.imports.test_import_proxy import settled, write
from tests.support.http.proxy_site import SHARDS, proxy_site


def said(import_command: ImportCommand) -> dict[str, str | int]:
    return {name: value for name, value in asdict(import_command).items() if name != "link"}


def ahead(windows: int) -> int:
    return (int(time.time() * 1000) // WINDOW_MS + windows) * WINDOW_MS


@pytest.mark.slow
def test_many_files_are_handed_over_and_their_ids_are_those_of_their_messages(tmp_path: Path) -> None:
    shared, window = tmp_path / "shared", ahead(5)
    files = [write(shared / f"{n}.parquet", window + n % 2 * WINDOW_MS, str(n)) for n in range(7)]
    with proxy_site(tmp_path / "data") as url, httpx.Client(base_url=url, timeout=300) as http, Admin(url) as client:
        found = client.import_files([said(one) for one in files], link=True)
        assert [one.raw["shard"] for one in found] == [shard_of_content(one.sha256, SHARDS) for one in files]
        assert len({one.raw["shard"] for one in found}) > 1, "the files of this test are of one shard"
        assert [settled(http, one.id)["state"] for one in found] == ["imported"] * 7
        assert not any(one.duplicate for one in found)

        ids = client.imported_ids(found[3].id)
        assert [peek(id_)[3] for id_ in ids] == list(range(20))
        assert [client.get(id_).state.payload for id_ in ids] == [b"%d 3" % n for n in range(20)]
        assert client.imported_ids(found[3].id, 17) == ids[17:]
        assert client.imported_ids(found[3].id, 5, 2) == ids[5:7]
        assert client.imported_ids(found[3].id, 20) == []
        pages, last = list[str](), ""
        while page := http.get(f"/v1/imports?below={shared}&limit=3&after={last}").json()["imports"]:
            assert len(page) <= 3
            pages += [one["id"] for one in page]
            last = pages[-1]
        assert pages == [one["id"] for one in http.get("/v1/imports").json()["imports"]]
        assert http.get(f"/v1/imports?below={shared}/nothing&after=").json() == {"imports": [], "count": 0}
        assert http.get("/v1/imports?after=x").json()["code"] == "bad_query"
        client.cancel(ids[4])
        assert client.imported_ids(found[3].id) == ids

        more = write(shared / "more.parquet", window, "more")
        again = client.import_files([said(one) for one in (files[0], more, files[0])])
        assert [one.duplicate for one in again] == [True, False, True]
        assert (again[0].id, again[0].state) == (found[0].id, "imported")
        assert settled(http, again[1].id)["state"] == "imported"
        refused = client.import_files([said(replace(write(shared / "w.parquet", window, "w"), rows=21))])[0]
        assert settled(http, refused.id)["state"] == "rejected"
        with pytest.raises(NoIds, match="rejected"):
            client.imported_ids(refused.id)
        with pytest.raises(UnknownImport):
            client.imported_ids("2-4711")
        with pytest.raises(UnknownImport):
            client.imported_ids("77-0")
        for query in ("first=-1", "max=0", "max=10001", "most=1"):
            assert http.get(f"/v1/imports/{found[3].id}/ids?{query}").json()["code"] == "bad_query"


@pytest.mark.slow
def test_files_that_were_joined_have_the_ids_and_states_that_they_had(tmp_path: Path) -> None:
    shared, data, window = tmp_path / "shared", tmp_path / "data", ahead(5)
    files = [write(shared / f"{n}.parquet", window, str(n)) for n in range(9)]
    joins = TieringPolicy(join_files=2, join_ms=0)
    with proxy_site(data, joins) as url, httpx.Client(base_url=url, timeout=300) as http, Admin(url) as client:
        found = client.import_files([said(one) for one in files], link=True)
        assert [settled(http, one.id)["state"] for one in found] == ["imported"] * 9
        shards = {one.raw["shard"] for one in found}
        while len(list(data.glob("shards/*/far/*/*.parquet"))) > len(shards):
            time.sleep(0.02)
        assert list(data.glob("shards/*/far/*/0*.parquet")), "all shards of this test have one file"

        ids = [client.imported_ids(one.id) for one in found]
        assert [[peek(id_)[3] for id_ in some] for some in ids] == [list(range(20))] * 9
        assert [client.get(id_).state.payload for id_ in ids[8]] == [b"%d 8" % n for n in range(20)]
        client.cancel(ids[3][4])
        assert client.get(ids[3][4]).state.status == "cancelled"
        assert client.imported_ids(found[3].id, 3, 2) == ids[3][3:5]
        assert client.imported_ids(found[3].id, 20) == []
        assert {one.id: one.state for one in client.imports()} == {one.id: "imported" for one in found}
        again = client.import_files([said(one) for one in files])
        assert [(one.id, one.duplicate) for one in again] == [(one.id, True) for one in found]


@pytest.mark.slow
def test_one_wrong_file_refuses_all_of_them(tmp_path: Path) -> None:
    shared, window = tmp_path / "shared", ahead(5)
    good = [write(shared / f"{n}.parquet", window, str(n)) for n in range(3)]
    elsewhere = write(tmp_path / "other" / "x.parquet", window)
    with proxy_site(tmp_path / "data") as url, httpx.Client(base_url=url, timeout=300) as http, Admin(url) as client:

        def refused(*wrong: object) -> tuple[str, int | None]:
            files = [said(good[0]), *wrong, said(good[2])]
            problem = http.post("/v1/imports:batch", json={"files": files}).json()
            return problem["code"], problem.get("file")

        near = said(replace(good[1], window=ahead(0)))
        assert refused(near) == ("past_due", 1)
        assert refused(said(good[1]), said(replace(good[1], window=ahead(24 * 2 * 365 * 20)))) == ("delay_too_long", 2)
        assert refused(said(elsewhere)) == ("forbidden", 1)
        assert refused(said(replace(good[1], path="1.parquet"))) == ("bad_field", 1)
        assert refused({"path": good[1].path}) == ("bad_field", 1)
        assert refused(said(good[1]) | {"colour": 1}) == ("unknown_field", 1)
        assert refused("x") == ("bad_field", 1)
        assert http.post("/v1/imports:batch", json={"files": []}).json()["code"] == "bad_field"
        assert http.post("/v1/imports:batch", json={"file": []}).json()["code"] == "unknown_field"
        many = {"files": [said(good[0])] * 20_001}
        assert http.post("/v1/imports:batch", json=many).json()["code"] == "batch_too_large"
        assert client.imports() == []
        for error, wrong in ((PastDue, near), (Forbidden, said(elsewhere))):
            with pytest.raises(error) as caught:
                client.import_files([said(good[0]), wrong])
            assert isinstance(caught.value, RejectedError) and caught.value.extra["file"] == 1
