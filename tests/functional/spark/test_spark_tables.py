"""Tables that commands are given by name: files, the catalog, a database behind JDBC."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged, rejected
from duemq.pipeline.cli.columns import chosen
from duemq.pipeline.cli.schedule import _identity
from duemq.pipeline.columns import CORRUPT, OWN, Columns
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.logs.tables import fingerprint, jdbc_table, read_table, schema_of
from duemq.pipeline.spark.failures import failures_told
from tests.support.spark.java import java_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
DUE = 1_830_297_600_000
ROWS = [("0012", 'a, "b"'), ("7", "c")]


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_the_format_of_files_is_told_by_their_names(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    folder = str(tmp_path / "table")
    spark.createDataFrame(ROWS, "id string, text string").write.format(kind).options(header="true", escape='"').save(
        folder
    )
    found = read_table(spark, folder)
    assert sorted(map(tuple, found.select("id", "text").collect())) == sorted(ROWS)
    (file, *_) = Path(folder).glob(f"*.{kind}")
    assert read_table(spark, str(file)).columns == ["id", "text"]
    before = fingerprint(found)
    assert before is not None and fingerprint(read_table(spark, folder)) == before
    file.touch()
    assert fingerprint(read_table(spark, folder)) != before


def test_what_cannot_be_read_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("a.csv", "b.json"):
        (tmp_path / "mixed" / name).touch()
    with pytest.raises(BadInput, match="cannot be told by their names: say --format"):
        read_table(spark, str(tmp_path / "mixed"))
    with pytest.raises(BadInput, match="cannot be read"):
        read_table(spark, str(tmp_path / "none.parquet"))
    with pytest.raises(BadInput, match="no_such_table cannot be read"):
        read_table(spark, "no_such_table")
    with pytest.raises(BadInput, match="excel is not a format of files here"):
        read_table(spark, str(tmp_path), "excel")


def test_a_table_of_the_catalog(spark: SparkSession) -> None:
    spark.createDataFrame(ROWS, "id string, text string").createOrReplaceTempView("reminders")
    try:
        found = read_table(spark, "reminders")
        assert sorted(map(tuple, found.collect())) == sorted(ROWS)
        assert fingerprint(found) is None, "it has no files"
    finally:
        spark.catalog.dropTempView("reminders")


def test_a_table_of_a_database(spark: SparkSession, tmp_path: Path) -> None:
    """Apache Derby, which comes with Spark."""
    java = java_of(spark)
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/base;create=true"
    options = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    rows = spark.createDataFrame(ROWS, "id string, text string")
    rows.write.format("jdbc").options(url=url, dbtable="reminders", **options).save()
    found = jdbc_table(spark, url, "reminders", options)
    assert sorted((row["id"], row["text"]) for row in found.collect()) == sorted(ROWS)
    chosen = jdbc_table(spark, url, '(select * from reminders where "text" is null) chosen', options)
    assert chosen.count() == 0 and fingerprint(chosen) is None
    with pytest.raises(BadInput, match="nothing cannot be read"):
        jdbc_table(spark, url, "nothing", options)
    with pytest.raises(BadInput, match="reminders cannot be read: No suitable driver"):
        jdbc_table(spark, "jdbc:unknown://db/shop", "reminders")


def test_lines_of_csv_are_whole_rows_or_rejects(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        f'id,due,text\nr1,{DUE},"Dear Ann,\npay 100 EUR\nthanks"\nr2,{DUE},"two, with comma"\nr3,{DUE},not, quoted\n'
        f"r4,{DUE}\n".encode()
        + f"r5,{DUE},caf\xe9\n".encode("latin-1")
    )
    columns = Columns("due", "text", to="t")

    def outcomes(**options: str) -> dict[str, bytes | str]:
        table = read_table(spark, str(tmp_path / "a.csv"), None, options, corrupt=True)
        rows = judged(table, columns, BulkRules(), DUE - 86_400_000).collect()
        return {row.id: row[OWN + REASON] or bytes(row[OWN + "payload"]) for row in rows}

    count, encoding = "the line has too few or too many columns", "the line is not in its encoding (UTF-8, if none"
    rows = outcomes()
    assert str(rows.pop("r5")).startswith(encoding)
    assert rows == {"r1": b"Dear Ann,\npay 100 EUR\nthanks", "r2": b"two, with comma", "r3": count, "r4": count}
    assert outcomes(encoding="ISO-8859-1")["r5"] == "caf\xe9".encode()
    one_line = outcomes(multiLine="false")
    assert one_line['thanks"'] == count and one_line["r2"] == b"two, with comma"
    assert read_table(spark, str(tmp_path / "a.csv")).columns == ["id", "due", "text"]
    apart = rejected(judged(read_table(spark, str(tmp_path / "a.csv"), corrupt=True), columns, BulkRules(), 0))
    lines = [row[CORRUPT] for row in apart.where(f"reason = '{count}'").collect()]
    assert sorted(lines) == [f"r3,{DUE},not, quoted", f"r4,{DUE}"]


def test_files_of_csv_whose_columns_differ_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n")
    (tmp_path / "b.csv").write_text("text,id\nb,2\n")
    with pytest.raises(JobFailed, match="CSV header does not conform to the schema"), failures_told("."):
        read_table(spark, str(tmp_path)).collect()


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_names_of_folders_are_text(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    frame = spark.createDataFrame([("0012", "7")], "customer string, id string")
    frame.write.partitionBy("customer").format(kind).option("header", "true").save(str(tmp_path / "t"))
    if kind == "parquet":  # they are numbers, dates or text there, as Spark's own tables have them
        with pytest.raises(BadInput, match=r"customer=0012.* --conf .*partitionColumnTypeInference.enabled=false"):
            read_table(spark, str(tmp_path / "t"))
    else:
        assert read_table(spark, str(tmp_path / "t")).select("customer", "id").collect() == [("0012", "7")]


def test_tables_of_a_catalog_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Also if they have no files that could tell."""
    (tmp_path / "a.csv").write_text(f"due,text\n{DUE},a\n{DUE},b\n")
    read_table(spark, str(tmp_path / "a.csv")).createOrReplaceTempView("whole")
    spark.sql("SELECT * FROM whole WHERE text = 'a'").createOrReplaceTempView("part")
    spark.createDataFrame([(DUE, "c")], "due bigint, text string").createOrReplaceTempView("fileless")
    spark.sql("SELECT * FROM fileless LIMIT 1").createOrReplaceTempView("first")
    columns = Columns("due", "text", to="t")
    names = ("whole", "part", "fileless", "first")
    prints = {name: _identity(spark.table(name), columns, "nightly", name, (None, None), "")[1] for name in names}
    assert len(set(prints.values())) == 4
    again = _identity(spark.table("part"), columns, "nightly", "part", (None, None), "")
    assert again == ("nightly", prints["part"], fingerprint(spark.table("part")))
    with pytest.raises(BadInput, match="--job is missing"):
        _identity(spark.table("first"), columns, None, "first", (None, None), "")
    about = _identity(spark.table("first"), columns, "j", None, ("jdbc:x://db;password=S3cret", "t"), "")[1]
    assert about.startswith("jdbc ") and "S3cret" not in about


def test_files_beside_a_table_are_no_part_of_it(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a folder %20 [x]"
    folder.mkdir()
    for name in ("1.csv", "2.csv"):
        (folder / name).write_text("id\n7\n")
    table = read_table(spark, f"{folder}".replace("[", r"\[").replace("]", r"\]") + "/*.csv")
    before = fingerprint(table)
    rows = [
        spark.read.format("binaryFile").load(exact(f"file://{folder}/{name}")).first() for name in ("1.csv", "2.csv")
    ]
    text = [f"{row.path} {row.length} {row.modificationTime.timestamp() * 1_000_000:.0f}" for row in rows if row]
    assert before == sha256("\n".join([schema_of(table), *text]).encode()).hexdigest(), "ids of jobs are made of it"
    (folder / "3.txt").touch()
    assert fingerprint(table) == before
    (folder / "2.csv").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        fingerprint(table)


def test_rows_and_columns_are_chosen_and_bad_lines_stay(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,due,country\n1,{DUE},FR\n2,{DUE},DE\n3,{DUE}\n")
    table = read_table(spark, str(tmp_path / "a.csv"), corrupt=True)
    rows = chosen(table, "country = 'FR'", ["CAST(id AS INT) + 1 AS id", "due"])
    assert rows.dtypes[0] == ("id", "int")
    found = judged(rows, Columns("due", "id", to="t"), BulkRules(), DUE - 86_400_000).collect()
    assert [(row[OWN + "payload"], row[OWN + REASON]) for row in found] == [
        (b"2", None), (b"4", "the line has too few or too many columns")
    ]  # fmt: skip
    assert chosen(table, None, ["*"]).columns == table.columns
    with pytest.raises(BadInput, match="UNRESOLVED_COLUMN"):
        chosen(table, "land = 'FR'", None)
