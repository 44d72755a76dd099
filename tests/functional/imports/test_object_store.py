"""Files that are taken in from an S3-compatible store: the same checks, and patience with a store that is away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from duemq.client import Admin
from duemq.client.http.errors import BadDelayFile as Refused
from duemq.client.http.errors import BadField, Forbidden
from duemq.client.http.errors import Unavailable as Away
from duemq.delay.imports.file_importer import FileImporter
from duemq.dev.servers.ports import HOST, free_port
from duemq.model.errors import BadDelayFile
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.columns import SCHEMA, is_normal
from duemq.storage.imports import import_process
from duemq.storage.imports.import_file import summary_of
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.jobs import ImportFailure, ImportFile, ImportJob, ReadProgress, encode, import_job
from duemq.storage.jobs.parent import lines_of
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore, StoreAway, fetch_object, outside, wrong_uri
from tests.e2e.server import Server, wait_for
from tests.functional.imports.import_site import DRAFTS, master_and_standby
from tests.support.node.import_files import WINDOW, file_of, message
from tests.support.servers.s3_site import S3Site
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import SHARD, World


def job_of(site: S3Site, uri: str, path: Path, target: Path, **said: Any) -> ImportJob:
    """To take in what is at `uri`, of which the command says what is true of `path`."""
    seen = summary_of(path)
    file: dict[str, Any] = (
        {"source": uri, "target": str(target), "shard": 0, "offset": 7, "link": False} | asdict(seen) | said
    )
    return ImportJob(
        limits=ImportLimits(), prefixes=[uri.rpartition("/")[0]], store=site.store, files=[ImportFile(**file)]
    )


def answers_to(job: ImportJob) -> list[Any]:
    answers: list[Any] = []
    import_process.intake(import_job(orjson.loads(encode(job))), answers.append)
    return [one for one in answers if not isinstance(one, ReadProgress)]


def told(job: ImportJob) -> Any:
    return answers_to(job)[0]


def test_an_object_is_taken_in_as_a_file_is(s3: S3Site, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(at) for at in range(5_000)])
    uri, target = s3.put(f"{s3.bucket()}/jobs/a.parquet", path.read_bytes()), tmp_path / "shard" / "far" / "7.parquet"
    answer = told(job_of(s3, uri, path, target))
    assert (answer.about.rows, answer.about.window) == (5_000, WINDOW)
    assert [*target.parent.iterdir()] == [target]
    assert answer.about.content == hashlib.sha256(target.read_bytes()).hexdigest()
    with pq.ParquetFile(target) as file:
        assert is_normal(file) and file.read(columns=SCHEMA.names)["payload"][17].as_py() == b"17"
    assert told(job_of(s3, uri, path, target)) == answer  # it is there: the store is not asked again


def test_what_is_wrong_with_an_object_is_said_of_it(s3: S3Site, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(0), message(WINDOW_MS)])
    bucket, target = s3.bucket(), tmp_path / "shard" / "far" / "7.parquet"
    uri = s3.put(f"{bucket}/jobs/a.parquet", path.read_bytes())
    job = job_of(s3, uri, path, target)
    answer = told(job)
    assert answer.final and "row 1, column due_ms" in answer.reason
    missing = told(job_of(s3, f"s3://{bucket}/jobs/b.parquet", path, target))
    assert missing == ImportFailure("b.parquet cannot be read: no such object")
    assert "a.parquet has size" in told(job_of(s3, uri, path, target, size=5)).reason
    assert (
        "a.parquet has sha256"
        in told(
            job_of(
                s3,
                s3.put(f"{bucket}/jobs/a.parquet", file_of(tmp_path / "b.parquet", [message(0)]).read_bytes()),
                tmp_path / "b.parquet",
                target,
                sha256="0" * 64,
            )
        ).reason
    )
    elsewhere = told(replace(job, prefixes=[f"s3://{bucket}/job"]))
    assert elsewhere.final and "delay_files.import_from" in elsewhere.reason
    assert not list(target.parent.iterdir())


def test_a_store_that_is_away_says_nothing_about_the_file(s3: S3Site, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(0)])
    uri, target = s3.put(f"{s3.bucket()}/jobs/a.parquet", path.read_bytes()), tmp_path / "far" / "7.parquet"
    nobody = replace(s3.store, endpoint=f"http://{HOST}:{free_port()}")
    answer = told(replace(job_of(s3, uri, path, target), store=nobody))
    assert (answer.final, answer.away) == (False, True) and "cannot be read from its store" in answer.reason
    job = replace(job_of(s3, uri, path, target), store=nobody)
    tried = answers_to(replace(job, files=[*job.files] * 3))
    assert [one.skipped for one in tried] == [False, True, True] and len({one.reason for one in tried}) == 1
    with pytest.raises(StoreAway), fetch_object(uri, tmp_path / "copy", nobody, [uri.rpartition("/")[0]]):
        pass
    with (
        pytest.raises(BadDelayFile, match=r"delay_files\.import_from"),
        fetch_object(uri, tmp_path / "copy", s3.store, []),
    ):
        pass
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "uri",
    ["s3://bucket", "s3://bucket/", "s3://bucket//a", "s3://bucket/a/../b", "s3://bucket/./b", "s3://b/a", "s3:///a",
     "s3://bucket/a/", "s3://Bucket/a", "s3://bucket/a/.."],
)  # fmt: skip
def test_a_uri_names_one_object_and_nothing_else(uri: str) -> None:
    assert wrong_uri(uri) is not None
    assert outside(uri, ["s3://bucket"]) is not None


def test_a_prefix_is_one_of_whole_parts() -> None:
    for prefix in ("s3://bucket/jobs", "s3://bucket/jobs/", "s3://bucket"):
        assert wrong_uri(prefix, prefix=True) is None
        assert outside("s3://bucket/jobs/1/a.parquet", [prefix]) is None
    for elsewhere in ("s3://bucket/jobs2/a", "s3://bucket2/jobs/a", "s3://bucket/a"):
        assert "delay_files.import_from" in (outside(elsewhere, ["s3://bucket/jobs"]) or "")


# --- a shard ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with master_and_standby(tmp_path) as made:
        yield made


@pytest.mark.anyio
async def test_a_shard_waits_for_a_store_as_long_as_the_window_allows(world: World, s3: S3Site) -> None:
    """A file that is not there is refused after `patience`; one whose store is away is not."""
    node, path = world.nodes[0], world.shared / "a.parquet"
    import_command = write_messages(path, DRAFTS)
    bucket = s3.bucket()
    uri = s3.put(f"{bucket}/a.parquet", path.read_bytes())
    nobody = replace(s3.store, endpoint=f"http://{HOST}:{free_port()}")
    policy = ImportPolicy(prefixes=(f"s3://{bucket}",), store=nobody)
    clock = world.now

    def importer() -> FileImporter:
        made = FileImporter(
            SHARD, node.replica, policy, lambda: clock, asyncio.Lock(),
            lines_of("duemq.storage.imports.import_process", 30.0),
        )  # fmt: skip
        made.lead()
        return made

    await world.produce([Handed(replace(import_command, path=uri), DRAFTS, gone=True)])
    await world.tick(node)
    taking = importer()
    for _ in range(3):
        await taking.step()
        clock += 90_000
        assert taking.decide(clock) == []
    assert "cannot be read from its store" in taking.why_pending(0)
    near = import_command.window - policy.lead_ms + 1
    (said,) = taking.decide(near)
    assert "one by one" in said.reason and "cannot be read from its store" in said.reason

    policy = replace(policy, store=s3.store)  # it is back
    taking = importer()
    assert await taking.step()
    (said,) = taking.decide(clock)
    assert (said.rows, said.reason) == (len(DRAFTS), "")


# --- a server ---------------------------------------------------------------------------------------------------------


def options(site: S3Site, *places: str) -> list[str]:
    said = (f"delay_files.import_from={','.join(places)}", f"delay_files.s3_endpoint={site.endpoint}")
    return [word for one in said for word in ("--set", one)]


@pytest.fixture
def own_s3(tmp_path: Path) -> Any:
    site = S3Site(tmp_path)
    site.start()
    yield site
    site.process.stop()


def test_a_server_takes_files_in_from_a_store_that_comes_and_goes(own_s3: S3Site, tmp_path: Path) -> None:
    bucket = own_s3.bucket()
    path = file_of(tmp_path / "a.parquet", [message(at) for at in range(100)])
    uri = own_s3.put(f"{bucket}/jobs/a.parquet", path.read_bytes())
    with Server(tmp_path / "data", *options(own_s3, f"s3://{bucket}/jobs", str(tmp_path))) as server:
        server.environment = own_s3.variables
        server.start()
        with Admin(server.url, timeout=120) as client:
            assert client.limits().imports_files
            with pytest.raises(Forbidden, match=r"delay_files\.import_from"):
                client.import_file(f"s3://{bucket}/other/a.parquet")
            with pytest.raises(BadField, match=r"empty, \. or \.\."):
                client.import_file(f"s3://{bucket}/jobs/../a.parquet")
            with pytest.raises(Refused, match="no such object"):
                client.import_file(f"s3://{bucket}/jobs/b.parquet")
            first = client.import_file(uri)  # read before the answer
            wait_for(lambda: client.import_record(first.id).state == "imported", "the first to be imported")
            own_s3.process.pause()
            other = file_of(tmp_path / "b.parquet", [message(at) for at in range(50)])
            said = asdict(summary_of(other))
            away = client.import_file(f"s3://{bucket}/jobs/b.parquet", **said)
            with pytest.raises(Away):
                client.import_file(f"s3://{bucket}/jobs/c.parquet")
            wait_for(lambda: client.import_record(away.id).reason, "the reason why it is not here")
            assert client.import_record(away.id).state == "pending"
            own_s3.process.resume()
            own_s3.put(f"{bucket}/jobs/b.parquet", other.read_bytes())
            wait_for(lambda: client.import_record(away.id).state == "imported", "the second to be imported")
            assert sum(shard.pending or 0 for shard in client.cluster().shards) == 150
        assert "tests-secret" not in server.log
        assert server.stop() == 0


def test_secrets_of_the_store_are_shown_nowhere() -> None:
    assert "hush" not in repr(ObjectStore("http://a", "r", "key", "hush"))
    assert orjson.dumps(asdict(ObjectStore(secret_key="hush")))  # but in the job of the process, on its input
