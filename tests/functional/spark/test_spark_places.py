"""A path is one of this machine, whatever file system a cluster has by default, and what else there is, is a URI: of
every place that the commands read or write. What cannot be written to is refused before anything is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from duemq.client import Client
from duemq.pipeline.cli.app import app
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import pattern_of, uri_of
from duemq.pipeline.logs.tables import read_table
from duemq.pipeline.report.place import check_page, write_page
from duemq.pipeline.spark import session
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this process, in a session whose default file system is another one, which nobody reaches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "running", lambda *_, **__: nullcontext(spark))
    spark.conf.set("fs.defaultFS", "nowhere://cluster/")
    try:
        yield tmp_path
    finally:
        spark.conf.unset("fs.defaultFS")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def detail(result: Result, code: int = 1) -> str:
    """Of an error, as a command says it for programs."""
    assert result.exit_code == code, result.output
    said: dict[str, Any] = orjson.loads(result.stdout)["error"]
    assert said["kind"] == "BadInput" and "\n" not in said["detail"], said
    return str(said["detail"])


def ids(spark: SparkSession, name: str) -> list[str]:
    return sorted(row.id for row in read_table(spark, name).collect())


def test_the_default_file_system_of_these_tests_is_another_one(spark: SparkSession, here: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        spark.range(1).write.parquet("table")


def test_tables_are_read_of_this_machine(spark: SparkSession, here: Path) -> None:
    for name, id_ in (("a", "1"), ("b", "2")):
        spark.createDataFrame([(id_,)], "id string").write.parquet(f"file://{here}/tables/{name}")
    spark.createDataFrame([("3",)], "id string").createOrReplaceTempView("a_view")
    try:
        for name in ("tables/a", f"{here}/tables/a", f"file://{here}/tables/a", f"file:{here}/tables/a", "./tables/a/"):
            assert ids(spark, name) == ["1"], name
        for pattern in ("tables/*", "tables/{a,b}", f"file://{here}/tables/[ab]"):
            assert ids(spark, pattern) == ["1", "2"], pattern
        assert ids(spark, "a_view") == ["3"]
    finally:
        spark.catalog.dropTempView("a_view")


def test_the_folder_of_this_process_is_no_pattern(
    spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := here / "[ab] {c}*").mkdir()
    monkeypatch.chdir(folder)
    (folder / "rows.csv").write_text("id\n7\n")
    assert ids(spark, "rows.csv") == ids(spark, "*.csv") == ["7"]
    assert pattern_of("../x") == f"file://{here}/x"


def test_what_cannot_be_read_is_refused_in_a_sentence(spark: SparkSession, here: Path) -> None:
    for name, said in (
        ("ftp://host/t.csv", "ftp://host/t.csv: the scheme ftp: is unknown"),
        ("s3a://bucket/t.csv", "s3a://bucket/t.csv cannot be read: .*S3AFileSystem"),
        ("s3a://bucket/folder", "s3a://bucket/folder cannot be read: .*S3AFileSystem"),
        ("file:///not/there", "file:///not/there cannot be read: .*PATH_NOT_FOUND"),
        ("nothing/*.json", r"nothing/\*\.json cannot be read: .*PATH_NOT_FOUND"),
    ):
        with pytest.raises(BadInput, match=f"^{said}") as error:
            read_table(spark, name)
        assert "\n" not in str(error.value)


def test_answers_are_written_on_this_machine(server: str, here: Path) -> None:
    with Client(server) as client:
        id_ = client.send("places", b"", deliver_after="1h").id
    (here / "late.csv").write_text("order,to\no1,2033-05-18T09:03:20\n")  # in India
    (here / "ids.csv").write_text(f"name,id\no1,{id_}\n")
    words = ("late.csv", "--key", "order", "--ids", "ids.csv", "--url", server)
    moving = ("--to", "to", "--zone", "Asia/Kolkata", "--answers", f"file://{here}/moved")
    assert run("move", *words, *moving).exit_code == 0
    assert pq.read_table(here / "moved")["at_ms"].to_pylist() == [2 * 10**12]
    assert run("cancel", *words, "--answers", "cancelled").exit_code == 0
    assert pq.read_table(here / "cancelled")["status"].to_pylist() == ["cancelled"]


@pytest.mark.parametrize("command", ["cancel", "move"])
def test_nothing_is_asked_where_answers_cannot_be_written(here: Path, command: str) -> None:
    (here / "t.csv").write_text("id,to\nx,1\n")
    (here / "there").mkdir()
    words = [command, "t.csv", "--id", "id", "--url", NOWHERE, "--patience", "0", "--json"]
    words += ["--to", "to"] if command == "move" else []
    for place, said in (
        ("ftp://h/x", "--answers ftp://h/x: the scheme ftp: is unknown"),
        ("s3a://bucket/x", "--answers s3a://bucket/x: Spark cannot reach it"),
        ("there", f"--answers file://{here}/there: exists already"),
    ):
        assert detail(run(*words, "--answers", place)).startswith(said)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("audit", "--kafka", "127.0.0.1:9"), "--out"),
        (("forecast", "not-there"), "--into"),
        (("send", "t.csv", "--to", "t", "--payload", "id", "--name", "id", "--kafka", "127.0.0.1:9"), "--rejects"),
    ],
)
def test_a_place_is_refused_before_any_work(here: Path, words: tuple[str, ...], option: str) -> None:
    (here / "t.csv").write_text("id,due\nx,1830297600000\n")
    code = 1 if words[0] == "send" else 9  # of an audit and a forecast 1 is a verdict
    for place in ("wasb://box@account/x", "gs://bucket/x", "hdfs://nobody.invalid/x"):
        assert detail(run(*words, option, place, "--json"), code).startswith(f"{option} {place}: ")


def test_a_page_is_put_beside_its_tables(spark: SparkSession, here: Path) -> None:
    write_page(spark, uri_of("reports/page.html"), "<p>one</p>")
    write_page(spark, uri_of(here / "reports" / "page.html"), "<p>two</p>")
    assert [path.read_text() for path in (here / "reports").iterdir()] == ["<p>two</p>"]
    check_page(spark, "s3a://bucket/x", "--out")


def test_a_connect_session_writes_no_page_to_other_file_systems(spark: SparkSession) -> None:
    class Remote:
        __module__ = "pyspark.sql.connect.session"

    remote: Any = Remote()
    check_page(remote, uri_of("reports"), "--out")
    with pytest.raises(BadInput, match=r"^--out s3a://bucket/x: a Spark Connect session can write tables there"):
        check_page(remote, "s3a://bucket/x", "--out")
