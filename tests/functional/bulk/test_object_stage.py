"""A stage in a store: documents are written once, whoever comes second."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.dev.servers.ports import HOST, free_port
from duemq.model.errors import Unavailable
from duemq.pipeline.bulk_schedule.object_stage import ObjectStage
from duemq.pipeline.bulk_schedule.stage import FolderStage, Stage
from duemq.pipeline.errors import BadInput
from tests.support.servers.s3_site import ACCESS_KEY, REGION, SECRET_KEY, S3Site


@pytest.fixture(params=["folder", "store"])
def stage(request: Any, tmp_path: Path) -> Stage:
    if request.param == "folder":
        return FolderStage(tmp_path / "jobs" / "job")
    return of_store(request.getfixturevalue("s3"))


def of_store(site: S3Site) -> ObjectStage:
    config = {"endpoint": site.endpoint, "region": REGION, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return ObjectStage("s3a", site.bucket(), "jobs/job", tuple(config.items()))


def test_a_document_is_written_once(stage: Stage) -> None:
    for _ in range(2):  # and the next run
        stage.make()
        stage.check()
    assert stage.read("manifest.json") is None
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: stage.write_once("manifest.json", b"%d" % n), range(8)))
    first = stage.read("manifest.json")
    assert first is not None and first in {b"%d" % n for n in range(8)}
    stage.write_once("manifest.json", b"later")
    assert stage.read("manifest.json") == first


def test_files_are_listed_read_and_removed(stage: Stage, s3: S3Site) -> None:
    stage.make()
    names = [
        "attempt-1/window=0/part-0.parquet",
        "attempt-1/window=0/part-1.parquet",
        "attempt-10/window=0/a b.parquet",
    ]
    for number, name in enumerate(names):
        if isinstance(stage, FolderStage):
            path = stage.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * (number + 1))
        else:
            s3.put(stage.path(name).removeprefix("s3://"), b"x" * (number + 1))
    assert stage.files("attempt-1") == {names[0]: 1, names[1]: 2}
    with stage.local(names[2]) as file:
        assert file.read_bytes() == b"xxx"
    with pytest.raises(FileNotFoundError), stage.local("attempt-1/none") as file:
        file.read_bytes()
    assert stage.folders() == ["attempt-1", "attempt-10"]
    stage.write("attempt-1/window=0/part-2.parquet", b"yyyy")
    stage.remove(names[1])
    assert stage.files("attempt-1") == {names[0]: 1, "attempt-1/window=0/part-2.parquet": 4}
    stage.remove("attempt-1")
    stage.tidy()
    assert stage.folders() == ["attempt-10"] and stage.files("attempt-1") == {}


def test_a_store_that_is_away_is_said_to_be(s3: S3Site) -> None:
    stage = of_store(s3)
    config = tuple(
        (name, f"http://{HOST}:{free_port()}" if name == "endpoint" else said) for name, said in stage.config
    )
    away = replace(stage, config=(*config,))
    with pytest.raises(Unavailable, match="cannot be reached"):
        away.read("manifest.json")
    assert SECRET_KEY not in repr(stage)


def test_a_store_without_conditional_puts_is_refused(s3: S3Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = of_store(s3)
    put = ObjectStage._put_new
    monkeypatch.setattr(ObjectStage, "_put_new", staticmethod(lambda store, name, content: put(store, f"{name}2", b"")))
    with pytest.raises(BadInput, match="no conditional put"):
        stage.check()
