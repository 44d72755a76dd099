"""Times of tables, in sessions of several zones: a message is due at one moment, whoever runs the job and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.timing import FIRST_MS
from duemq.pipeline.columns import OWN, Columns, with_fields
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.tables import jdbc_table, read_table
from duemq.pipeline.spark.session import override
from tests.support.spark.java import java_of
from tests.support.spark.spark_site import spark_tests
from tests.support.times import INSTANTS

pytestmark = [*spark_tests, pytest.mark.usefixtures("session_zone")]
NOW = 1_830_297_600_000  # 2028-01-01T00:00Z


def read(frame: DataFrame, columns: Columns) -> list[tuple[int | None, str | None]]:
    """The due time of each row, or why there is none."""
    found = with_fields(frame.coalesce(1), columns).select(OWN + "due_ms", OWN + "unread").collect()
    return [(row[0], row[1]) for row in found]


def times(frame: DataFrame, zone: str | None = None, due: str = "at", unit: str = "ms") -> list[int | str | None]:
    columns = Columns(due, "body", to="orders", zone=zone, unit=unit)
    return [reason if ms is None else ms for ms, reason in read(frame.withColumn("body", F.lit("x")), columns)]


def in_zone(text: str, zone: str) -> int | str:
    """As Python's own database of zones sees it: the moment, or "gap" or "twice"."""
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    moments = {at.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
    shown = [moment for moment in moments if moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
             == at.replace(tzinfo=None)]  # fmt: skip
    if len(shown) != 1:
        return "twice" if shown else "gap"
    return round(shown[0].timestamp() * 1000)


TEXTS = {
    "2028-01-01T00:30:00Z": NOW + 1_800_000,
    "2028-01-01 01:30:00.000+01:00": NOW + 1_800_000,
    "2027-12-31t19:30-05:00": NOW + 1_800_000,
    "2028-01-01T06:00:00.000001+0530": NOW + 1_800_001,
    "2028-01-01T00:30:00.000000001Z": NOW + 1_800_001,
    "2028-03-12T02:30:00-05:00": 1_836_459_000_000,  # in New York's gap: an offset says which moment it is
    "2028-11-05T01:30:00-04:00": 1_857_015_000_000,
    "2028-11-05T01:30:00-05:00": 1_857_018_600_000,
    "2028-01-01T01:30+01": NOW + 1_800_000,
    "2028-01-01 01:30:00 +0100": NOW + 1_800_000,
    "2028-01-01T00:30:00,5Z": NOW + 1_800_500,
    "2028-01-01T00:30:00.0000000001Z": NOW + 1_800_001,
    "2027-12-31T23:59:60Z": NOW,
    "2028-01-01T01:30:00+01:00[Europe/Berlin]": NOW + 1_800_000,
    "2028-01-01T01:30[Europe/Berlin]": NOW + 1_800_000,
    str(NOW): NOW,
    f" {NOW} ": NOW,
}


def test_what_says_its_moment_is_read_alike_in_every_session(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text,) for text in TEXTS], "at string")
    assert times(frame) == list(TEXTS.values())
    others = {text: ms for text, ms in TEXTS.items() if "[" not in text}
    frame = spark.createDataFrame([(text,) for text in others], "at string")
    assert times(frame, "Asia/Tokyo") == list(others.values()), "a zone is for those that have none"
    instants = [datetime.fromtimestamp(ms / 1000, UTC) for ms in TEXTS.values()]
    assert times(spark.createDataFrame([(at,) for at in instants], "at timestamp"), "Asia/Tokyo") == list(
        TEXTS.values()
    )


def test_a_text_means_in_spark_what_it_means_at_the_other_doors(spark: SparkSession) -> None:
    found = times(spark.createDataFrame([(text,) for text in INSTANTS], "at string"))
    assert dict(zip(INSTANTS, (one if isinstance(one, int) else None for one in found), strict=True)) == {
        text: ms if isinstance(ms, int) else None for text, ms in INSTANTS.items()
    }


LOCAL = [
    "2028-01-01 08:00:00", "2028-07-01T08:00", "2028-07-01", "2028-03-26 01:59:59.999", "2028-03-26 02:00:00",
    "2028-03-26 02:30:00.000001", "2028-03-26 02:59:59.999", "2028-03-26 03:00:00", "2028-10-29 01:59:59.999",
    "2028-10-29 02:00:00", "2028-10-29 02:59:59.999", "2028-10-29 03:00:00", "2028-03-12 02:30:00",
    "2028-11-05 01:30:00", "2028-04-02 01:45:00", "2028-10-01 02:15:00", "1999-12-31 23:59:59.999",
    "2011-12-30 12:00:00", "0001-01-02 00:00:00", "9999-12-30 23:59:59",
]  # fmt: skip
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_without_a_zone_is_read_in_the_one_that_is_said(spark: SparkSession, zone: str) -> None:
    """Of text, TIMESTAMP_NTZ and DATE; what the clocks of the zone leave out or show twice is no moment."""
    frame = spark.createDataFrame([(text,) for text in LOCAL], "at string")
    typed = frame.select(F.col("at").cast("timestamp_ntz"))
    subject = {"gap": f"is left out by the clocks of {zone}", "twice": f"is shown twice by the clocks of {zone}"}
    for table in (frame, typed):
        for text, found in zip(LOCAL, times(table, zone), strict=True):
            expected = in_zone(text, zone)
            if isinstance(expected, str):
                assert isinstance(found, str) and subject[expected] in found, (text, found)
            elif expected < FIRST_MS:
                assert isinstance(found, str) and "before March 1973" in found, (text, found)
            elif text.endswith(".000001"):
                assert found == expected + 1, text
            else:
                assert found == expected, (text, found)
    days = [date(2028, 7, 1), date(2028, 3, 26)]
    assert times(spark.createDataFrame([(day,) for day in days], "at date"), zone) == [
        in_zone(str(day), zone) for day in days
    ]


def test_a_time_without_a_zone_is_refused_where_none_is_said(spark: SparkSession) -> None:
    texts = ["2028-01-01T00:30:00", "2028-01-01", "2028-03-26 02:30"]
    frame = spark.createDataFrame([(text,) for text in texts], "at string")
    says = "due_ms (column at): '{}' has no time zone, and none is given for such times"
    assert times(frame) == [says.format(text) for text in texts]
    for kind in ("timestamp_ntz", "date"):
        with pytest.raises(
            BadInput, match=rf"column at \(due\) must be a timestamp, .*not {kind}: it has no time zone"
        ):
            times(frame.select(F.col("at").cast(kind)))


def test_what_is_no_time_is_no_time_in_any_zone(spark: SparkSession) -> None:
    texts = ["tomorrow", "", "1e12", "2028-13-01T00:30:00", "2028-02-30", "2028-01-01T24:00", "10000-01-01", "12:00"]
    frame = spark.createDataFrame([(text,) for text in texts], "at string")
    says = "due_ms (column at): '{}' is neither epoch ms nor a date-time with a zone (RFC 3339)"
    assert times(frame, "Europe/Berlin") == [says.format(text) for text in texts]
    far = spark.sql("select timestamp_ntz'294247-01-10 04:00:54' as at union all select null")
    assert times(far, "UTC") == [
        "due_ms (column at): '+294247-01-10 04:00:54' is not in the years 1 to 9999",
        "due_ms (column at): is null; every message needs one",
    ]
    with pytest.raises(BadInput, match="Mars/Base is no time zone"):
        Columns("at", "body", to="orders", zone="Mars/Base")
    with pytest.raises(BadInput, match="Factory is no time zone that Spark's Java knows"):
        times(frame, "Factory")
    with pytest.raises(BadInput, match="Europe is no time zone"):
        Columns("at", "body", to="orders", zone="Europe")


def test_whole_numbers_count_the_unit_that_is_said(spark: SparkSession) -> None:
    for kind in ("string", "bigint"):
        frame = spark.createDataFrame([(NOW // 1000,), (10**17,)], "at bigint").select(F.col("at").cast(kind))
        found = times(frame, unit="s")
        assert found[0] == NOW and isinstance(found[1], str), found
        seconds = NOW // 1000
        assert times(frame)[0] == f"due_ms (column at): '{seconds}' looks like seconds; ms are {NOW}"
    lost = times(spark.createDataFrame([("0",), ("-1",), ("1970-01-21T00:00:00Z",), ("20777",)], "at string"))
    assert all(str(one).endswith("' is before March 1973: a time that got lost") for one in lost), lost
    with pytest.raises(BadInput, match="the unit of whole numbers is ms or s, not us"):
        Columns("at", "body", to="orders", unit="us")


def test_an_expiry_is_read_as_a_due_time_is(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("2028-07-01 12:00:00", "x"), ("2028-03-26 02:30", "y"), (None, "z")], "until string, body string"
    ).withColumn("due", F.lit(NOW))
    columns = Columns("due", "body", to="orders", expires="until", zone="Europe/Berlin")
    found = with_fields(frame.coalesce(1), columns).select(OWN + "expires_ms", OWN + "unread").collect()
    assert [tuple(row) for row in found] == [
        (1_846_058_400_000, None),
        (None, "expires_ms (column until): '2028-03-26 02:30' is left out by the clocks of Europe/Berlin"),
        (None, None),
    ]


def test_a_payload_of_json_has_times_in_utc_and_whole(spark: SparkSession) -> None:
    frame = spark.sql(
        "select 1L as due, timestamp'2028-03-12T07:30:00.123456Z' as at, timestamp_ntz'2028-03-12 02:30:00.5' as local,"
        " date'2028-03-12' as day, map('at', timestamp'1969-12-31T23:59:59.5Z') as of"
    )
    (row,) = with_fields(frame, Columns("due", ("at", "local", "day", "of"), to="o")).collect()
    assert bytes(row[OWN + "payload"]) == (
        b'{"at":"2028-03-12T07:30:00.123456Z","local":"2028-03-12T02:30:00.500000","day":"2028-03-12",'
        b'"of":{"at":"1969-12-31T23:59:59.500000Z"}}'
    )


WALL = [datetime(2028, 1, 1, 8), datetime(2028, 3, 12, 2, 30), datetime(2028, 11, 5, 1, 30)]


def test_a_csv_is_read_alike_in_every_session(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "at,body\n2028-07-01 12:00:00,x\n2028-07-01T10:00:00Z,zoned\n2028-03-26 02:30:00,gap\n"
        "2028-10-29 02:30:00,twice\n"
    )
    rows = read(read_table(spark, str(tmp_path / "a.csv")), Columns("at", "body", to="t", zone="Europe/Berlin"))
    assert sorted(rows, key=str) == [
        (1_846_058_400_000, None),
        (1_846_058_400_000, None),
        (None, "due_ms (column at): '2028-03-26 02:30:00' is left out by the clocks of Europe/Berlin"),
        (
            None,
            "due_ms (column at): '2028-10-29 02:30:00' is shown twice by the clocks of Europe/Berlin: say it with its "
            "offset",
        ),
    ]


def test_what_reads_times_of_a_zone_is_small_enough_for_java_to_compile(spark: SparkSession) -> None:
    """Else Spark says so in an error, and goes on without compiled code; here it fails."""
    rows = spark.createDataFrame([("2028-07-01 12:00:00", "x")], "at string, body string")
    with override(spark, {"spark.sql.codegen.fallback": "false"}):
        found = with_fields(rows, Columns("at", "body", to="t", zone="Europe/Berlin"))
        assert [row[OWN + "due_ms"] for row in found.collect()] == [1_846_058_400_000]


def local_times(table: DataFrame, due: str = "due") -> list[int | str | None]:
    """With a zone; and without one the table is refused."""
    with pytest.raises(BadInput, match=r"not timestamp_ntz: it has no time zone, and none is given"):
        with_fields(table, Columns(due, due, to="orders"))
    return times(table.select(F.col(due).alias("at")), "America/New_York")


IN_NEW_YORK = [1_830_344_400_000, "is left out by the clocks", "is shown twice by the clocks"]


@contextmanager
def java_in(spark: SparkSession, zone: str) -> Iterator[None]:
    java = java_of(spark)
    zones = java.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


def alike(found: list[int | str | None]) -> bool:
    return all(str(expected) in str(one) for expected, one in zip(IN_NEW_YORK, found, strict=True))


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_orc_and_parquet_without_a_zone_need_one(spark: SparkSession, tmp_path: Path, vectors: str) -> None:
    table = pa.table({
        "due": pa.array(WALL, pa.timestamp("us")), "zoned": pa.array(WALL, pa.timestamp("us", "UTC")), "n": [1, 2, 3],
    })  # fmt: skip
    orc.write_table(table.drop_columns("zoned"), tmp_path / "a.orc")
    pq.write_table(table, tmp_path / "int64.parquet")
    pq.write_table(table.drop_columns("zoned"), tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    readers = ("spark.sql.orc.enableVectorizedReader", "spark.sql.parquet.enableVectorizedReader")
    for name in readers:
        spark.conf.set(name, vectors)
    try:
        for name in ("a.orc", "int64.parquet", "int96.parquet"):
            found = read_table(spark, str(tmp_path / name))
            assert alike(local_times(found)), name
            assert [row.n for row in found.collect()] == [1, 2, 3]
        with java_in(spark, "America/New_York"):
            for name in ("int64.parquet", "int96.parquet"):
                assert alike(local_times(read_table(spark, str(tmp_path / name)))), name
            with pytest.raises(BadInput, match=r"a\.orc: it has .* in the zone America/New_York: set -Duser"):
                read_table(spark, str(tmp_path / "a.orc"))
        instants = [int(at.replace(tzinfo=UTC).timestamp() * 1000) for at in WALL]
        zoned = read_table(spark, str(tmp_path / "int64.parquet")).select(F.col("zoned").alias("at"))
        assert times(zoned) == times(zoned, "Asia/Tokyo") == instants
    finally:
        for name in readers:
            spark.conf.unset(name)
    assert spark.conf.get("spark.sql.timestampType") == "TIMESTAMP_LTZ", "the session is as it was"


def test_a_file_of_both_old_and_new_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own INT96 are instants, and its files say so; other writers' are not."""
    frame = spark.sql("select timestamp'2028-01-01T08:00:00Z' as at, timestamp_ntz'2028-01-01 08:00:00' as due")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        frame.write.parquet(str(tmp_path / "spark"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (file,) = (tmp_path / "spark").glob("*.parquet")
    assert pq.ParquetFile(file).schema.column(0).physical_type == "INT96"
    found = read_table(spark, str(tmp_path / "spark"))
    assert (
        times(found.select("at")) == [NOW + 8 * 3_600_000]
        and found.schema["due"].dataType.typeName() == "timestamp_ntz"
    )


def test_inferred_types_of_text_do_not_take_the_zone_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    lines = ["due,zoned,mixed,n"] + [
        f"{at},{at:%Y-%m-%dT%H:%M:%S}Z,{at}{'Z' if at.month > 3 else ''},{n}" for n, at in enumerate(WALL)
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    spark.read.csv(str(tmp_path / "a.csv"), header=True).coalesce(1).write.json(str(tmp_path / "a.json"))
    instants = [int(at.replace(tzinfo=UTC).timestamp() * 1000) for at in WALL]
    for name, option in (("a.csv", "inferSchema"), ("a.json", "inferTimestamp")):
        found = read_table(spark, str(tmp_path / name), None, {option: "true"})
        assert alike(local_times(found)), name
        assert times(found.select(F.col("zoned").alias("at"))) == instants, name
        mixed = times(found.select(F.col("mixed").alias("at")))
        assert [isinstance(one, int) for one in mixed] == [False, False, True] and mixed[2] == instants[2], mixed
        assert spark.conf.get("spark.sql.timestampType") == "TIMESTAMP_LTZ"
    (tmp_path / "b.csv").write_text("due,zoned\n12.03.2028 02:30,12.03.2028 02:30 +01:00\n")
    formats = {"due": "dd.MM.yyyy HH:mm", "zoned": "dd.MM.yyyy HH:mm XXX"}
    tables = {
        name: read_table(spark, str(tmp_path / "b.csv"), None, {"inferSchema": "true", "timestampFormat": form})
        for name, form in formats.items()
    }
    assert "is left out" in str(times(tables["due"], "America/New_York", "due")[0])
    assert times(tables["zoned"], due="zoned") == [int(datetime(2028, 3, 12, 1, 30, tzinfo=UTC).timestamp() * 1000)]


def test_the_name_of_a_folder_may_be_a_time_without_a_zone(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table" / "due=2028-01-01 08%3A00%3A00"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"body": ["x"]}), folder / "a.parquet")
    assert local_times(read_table(spark, str(tmp_path / "table")))[0] == IN_NEW_YORK[0]


def test_a_database_without_a_zone_needs_one(spark: SparkSession, tmp_path: Path) -> None:
    """Apache Derby, which comes with Spark."""
    java = java_of(spark)
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/base;create=true"
    connection = java.java.sql.DriverManager.getConnection(url)
    statement = connection.createStatement()
    statement.execute("create table reminders (due timestamp)")
    for at in WALL:
        statement.execute(f"insert into reminders values (timestamp('{at}'))")
    connection.close()
    options = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    assert alike(local_times(jdbc_table(spark, url, "reminders", options), "DUE"))
    with java_in(spark, "America/New_York"), pytest.raises(BadInput, match="in the zone America/New_York"):
        jdbc_table(spark, url, "reminders", options)
    found = jdbc_table(spark, url, "reminders", options | {"preferTimestampNTZ": "false"})
    assert found.schema["DUE"].dataType.typeName() == "timestamp", "what the user says comes last"
