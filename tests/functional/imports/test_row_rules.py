"""What is refused of files that others wrote, with which row and column: the same as of messages by HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.model.errors import BadDelayFile, Rejected
from duemq.model.timing import LAST_MS, WINDOW_MS
from duemq.model.topics.rules import MAX_LABELS
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.storage.delay_files.columns import OWN, ROWS_PER_GROUP, SCHEMA
from duemq.storage.imports.import_file import import_file, inspect
from duemq.storage.limits import ImportLimits
from tests.support.node.import_files import LIMITS, WINDOW, file_of, header, message


def refusal(path: Path, limits: ImportLimits = LIMITS) -> BadDelayFile:
    with pytest.raises(BadDelayFile) as looked_at:
        inspect(path, limits)
    target = path.with_name("target.parquet")
    with pytest.raises(BadDelayFile) as taken:
        import_file(path, target, WINDOW, limits)
    assert [*path.parent.iterdir()] == [path]  # nothing is left of it
    one, other = looked_at.value, taken.value
    assert (str(one), one.row, one.column) == (str(other), other.row, other.column)
    return one


BAD_ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("due_ms", {"due_ms": None}, "is null"),
    ("due_ms", {"due_ms": WINDOW + WINDOW_MS}, f"{WINDOW + WINDOW_MS} is not in the window of this file, {WINDOW} to "),
    ("due_ms", {"due_ms": WINDOW}, f"{WINDOW} is before {WINDOW + 6}, the row before it: rows must be sorted"),
    ("due_ms", {"due_ms": -5}, f"-5 is before {WINDOW + 6}"),
    ("topic", {"topic": None}, "is null"),
    *(("topic", {"topic": name}, "must be 1 to 249") for name in ("", ".", "..", "a b", "ä", "duemq.dlq", "t" * 250)),
    ("payload", {"payload": b"x" * 21}, "has 21 bytes, the limit is 20"),
    ("key", {"key": b"x" * 6}, "has 6 bytes, the limit is 5"),
    ("headers", {"headers": [header()] * 4}, "4 headers are given, the limit is 3"),
    ("headers", {"headers": [header(), None]}, "headers: a header is null"),
    ("headers", {"headers": [header(name=None)]}, "the name of a header is null"),
    ("headers", {"headers": [header(name="")]}, "header names have 1 to 256 characters, not 0"),
    ("headers", {"headers": [header(name="n" * 257)]}, "header names have 1 to 256 characters, not 257"),
    ("headers", {"headers": [header(), header("DueMQ-id")]}, "header 'DueMQ-id': the prefix duemq- is duemq's own"),
    ("headers", {"headers": [header(value=b"x" * 54)]}, "have 61 bytes, the limit is 60"),
    ("labels", {"labels": ["x"] * (MAX_LABELS + 1)}, "17 labels are given, the limit is 16"),
    ("labels", {"labels": ["x", None]}, "a label is null"),
    *(("labels", {"labels": ["x", bad]}, "a label has 1 to 128") for bad in ("", "a,b", "a\n", "\x9f", "x" * 129)),
    ("expires_ms", {"expires_ms": WINDOW + 6}, f"{WINDOW + 6} is before the message is due, {WINDOW + 7}"),
    ("expires_ms", {"expires_ms": 0}, "0 is before March 1973"),
    ("expires_ms", {"expires_ms": LAST_MS + 1}, "is after the year 9999"),
]


@pytest.mark.parametrize(("column", "change", "says"), BAD_ROWS)
def test_a_bad_row_is_named(tmp_path: Path, column: str, change: dict[str, Any], says: str) -> None:
    rows = [message(at) for at in range(20)]
    rows[7] |= change
    error = refusal(file_of(tmp_path / "bad.parquet", rows))
    assert (error.code, error.row, error.column, error.field) == ("bad_delay_file", 7, column, column)
    assert str(error).startswith(f"row 7, column {column}: ") and says in str(error)
    assert error.extra == {"row": 7}


@pytest.mark.parametrize(
    "change",
    [
        {"due_ms": WINDOW}, {"due_ms": WINDOW + WINDOW_MS - 1, "expires_ms": WINDOW + WINDOW_MS - 1},
        {"expires_ms": LAST_MS}, {"topic": "t" * 249}, {"topic": "..."}, {"payload": b"x" * 20}, {"payload": b""},
        {"key": b"\xff" * 5}, {"key": b""}, {"headers": [header("n" * 5, b"v" * 5)] * 3, "labels": ["l"] * MAX_LABELS},
        {"headers": [header(value=b"x" * 53)]}, {"headers": [header("ä" * 26, b"")]},
        {"headers": [header("duemq", b"")]}, {"labels": ["ä" * 128, "a b", "\u2028"]},
    ],
)  # fmt: skip
def test_a_row_at_its_limits(tmp_path: Path, change: dict[str, Any]) -> None:
    path = file_of(tmp_path / "good.parquet", [message(0), message(0) | change])
    assert inspect(path, LIMITS).rows == 2


def test_names_of_headers_are_measured_in_characters(tmp_path: Path) -> None:
    path = file_of(tmp_path / "good.parquet", [message(0, headers=[header("ä" * 256, b"")])])
    assert inspect(path, ImportLimits()).rows == 1


def test_the_first_wrong_row_is_reported(tmp_path: Path) -> None:
    """Whatever the column, also far behind the start and where the file is not in order."""
    rows = [message(at) for at in range(40_000)]
    rows[39_990] |= {"due_ms": None}
    rows[39_000] |= {"labels": [""]}
    rows[38_000] |= {"headers": [header(), header("")]}
    rows[37_999] |= {"headers": [header(), header("n" * 300)]}
    for row_group_size in (1_000, 10**6):
        path = file_of(tmp_path / "bad.parquet", rows, row_group_size=row_group_size)
        assert (refusal(path).row, refusal(path).column) == (37_999, "headers")


def test_the_first_wrong_column_of_a_row_is_reported(tmp_path: Path) -> None:
    error = refusal(file_of(tmp_path / "bad.parquet", [message(3), message(2, topic="", key=b"x" * 9)]))
    assert (error.row, error.column) == (1, "due_ms")


def test_a_row_is_compared_with_the_one_before_across_batches(tmp_path: Path) -> None:
    rows = [message(5) for _ in range(4 * ROWS_PER_GROUP)] + [message(4)]
    assert refusal(file_of(tmp_path / "bad.parquet", rows)).row == 4 * ROWS_PER_GROUP


@pytest.mark.parametrize("due", [-1, LAST_MS + 1, 2**63 - 1])
def test_a_first_row_outside_of_time(tmp_path: Path, due: int) -> None:
    path = file_of(tmp_path / "bad.parquet", [message(0, due_ms=due)])
    with pytest.raises(BadDelayFile, match="row 0, column due_ms"):
        inspect(path, LIMITS)
    with pytest.raises(BadDelayFile, match="row 0, column due_ms"):
        import_file(path, tmp_path / "t.parquet", WINDOW, LIMITS)


def test_a_file_of_another_window(tmp_path: Path) -> None:
    path = file_of(tmp_path / "good.parquet", [message(0)])
    assert inspect(path, LIMITS).window == WINDOW
    with pytest.raises(BadDelayFile, match=f"row 0, column due_ms: {WINDOW} is not in the window"):
        import_file(path, tmp_path / "t.parquet", WINDOW + WINDOW_MS, LIMITS)


def test_topics_that_are_not_delivered_to(tmp_path: Path) -> None:
    path = file_of(tmp_path / "f.parquet", [message(0, topic=name) for name in ("mail", "orders.eu", "order")])
    assert inspect(path, ImportLimits(topics=("mail", "order*"))).rows == 3
    error = refusal(path, ImportLimits(topics=("mail", "orders.*")))
    assert (error.row, error.column) == (2, "topic")
    assert "order is not among the topics this server delivers to" in str(error)


@pytest.mark.parametrize("column", ["headers", "labels"])
def test_text_that_is_not_utf_8(tmp_path: Path, column: str) -> None:
    """Writers of Parquet may claim what is not so."""
    for bad in (b"\xff", b"\xed\xa0\x80"):
        lists = pa.array([[b"\xc3\xa4"], None, [b"ok", bad], [b"x" * 300]], pa.list_(pa.binary()))
        texts = pa.Array.from_buffers(pa.string(), 4, lists.values.buffers())
        if column == "headers":
            texts = pa.StructArray.from_arrays([texts, texts], ["name", "value"])
        values = pa.ListArray.from_buffers(
            pa.list_(texts.type),
            4,
            [pa.array([True, False, True, True]).buffers()[1], lists.buffers()[1]],
            children=[texts],
        )
        table = pa.table({"due_ms": [WINDOW] * 4, "topic": ["t"] * 4, "payload": ["p"] * 4, column: values})
        pq.write_table(table, tmp_path / "bad.parquet")
        error = refusal(tmp_path / "bad.parquet")
        assert (error.row, error.column) == (2, column) and "not UTF-8" in str(error)


@pytest.mark.parametrize(
    ("fields", "column", "says"),
    [
        ({"paylod": pa.string()}, "paylod", "is unknown; known are due_ms, topic, payload, key, headers"),
        ({"__index_level_0__": pa.int64()}, "__index_level_0__", "is unknown"),
        ({"due_ms": pa.timestamp("ms")}, "due_ms", "must be int64 (epoch ms), not timestamp[ms]"),
        ({"due_ms": pa.int32()}, "due_ms", "must be int64"),
        ({"topic": pa.binary()}, "topic", "must be string, not binary"),
        ({"payload": pa.int64()}, "payload", "must be binary or string"),
        ({"topic": pa.null()}, "topic", "must be string, not null"),
        ({"key": pa.int64()}, "key", "must be binary or string"),
        ({"headers": pa.string()}, "headers", "must be list<struct<name: string, value: binary or string>> or map"),
        ({"headers": pa.list_(pa.struct({"name": pa.string(), "text": pa.string()}))}, "headers", "must be list"),
        ({"headers": pa.map_(pa.string(), pa.int64())}, "headers", "must be list"),
        ({"labels": pa.string()}, "labels", "must be list<string>"),
        ({"labels": pa.list_(pa.int64())}, "labels", "must be list<string>"),
        ({"expires_ms": pa.float64()}, "expires_ms", "must be int64"),
    ],
)
def test_columns_that_are_wrong(tmp_path: Path, fields: dict[str, pa.DataType], column: str, says: str) -> None:
    types = dict(zip(SCHEMA.names[:3], SCHEMA.types, strict=False)) | fields
    pq.write_table(pa.schema(types.items()).empty_table(), tmp_path / "bad.parquet")
    error = refusal(tmp_path / "bad.parquet")
    assert (error.row, error.column, error.extra) == (None, column, {})
    assert says in str(error)


@pytest.mark.parametrize("missing", ["due_ms", "topic", "payload"])
def test_columns_that_are_missing(tmp_path: Path, missing: str) -> None:
    path = file_of(tmp_path / "bad.parquet", [message(1)], pa.schema([f for f in SCHEMA if f.name != missing]))
    error = refusal(path)
    assert error.column == missing and "is missing; due_ms, topic, payload must be there" in str(error)


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    columns = [pa.array([WINDOW]), pa.array(["t"]), pa.array(["p"]), pa.array(["q"])]
    pq.write_table(pa.table(columns, names=["due_ms", "topic", "payload", "payload"]), tmp_path / "bad.parquet")
    error = refusal(tmp_path / "bad.parquet")
    assert (error.column, str(error)) == ("payload", "column payload: is there twice")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    assert "bad.parquet has 0 rows" in str(refusal(file_of(tmp_path / "bad.parquet", [])))
    (tmp_path / "bad.parquet").write_bytes(b"")
    assert "bad.parquet is not Parquet, or damaged" in str(refusal(tmp_path / "bad.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"due_ms,topic,payload\n")
    assert "bad.parquet is not Parquet, or damaged" in str(refusal(tmp_path / "bad.parquet"))
    for path, why in ((tmp_path / "none.parquet", "cannot be read"), (tmp_path, "is not a regular file")):
        with pytest.raises(BadDelayFile, match=why):
            inspect(path, LIMITS)
        with pytest.raises(BadDelayFile, match=why):
            import_file(path, tmp_path / "t.parquet", WINDOW, LIMITS)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Cut anywhere, or with any bit of its data flipped, where it has page checksums."""
    path = tmp_path / "bad.parquet"
    options = {"row_group_size": 50, "write_page_checksum": True}
    whole = file_of(path, [message(at, key=b"k") for at in range(100)], **options).read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        refusal(path)
    flipped = 0
    for at in range(4, footer, 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            inspect(path, LIMITS)
        except BadDelayFile:
            flipped += 1
    # What is between the pages' contents is not summed up: their headers, of which not every byte matters.
    assert flipped > 0.7 * len(range(4, footer, 61))


# --- the same rules as by HTTP ----------------------------------------------------------------------------------------

GATE = Ingress(
    MessageLimits(max_payload_bytes=20, max_headers=3, max_headers_bytes=60, max_key_bytes=5, topics=("o*", "du*"))
)
SAME = ImportLimits(max_payload_bytes=20, max_headers=3, max_headers_bytes=60, max_key_bytes=5, topics=("o*", "du*"))

_texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["duemq-x", "DUEMQ-", "duemq", "a,b", "\x7f", "\u2028", "x" * 128, "x" * 129, "n" * 256, "é" * 257]
)
_topics = st.sampled_from(["orders", "o", "due"] * 5 + ["mail", "duemq.x", "o/o", "", "o" * 249, "o" * 250]) | _texts
_messages = st.fixed_dictionaries(
    {"topic": _topics, "payload": st.text(max_size=12)},
    optional={
        "key": st.text(max_size=4),
        "headers": st.dictionaries(_texts | st.just("h"), st.text(max_size=9), max_size=4),
        "labels": st.lists(_texts | st.just("l"), max_size=3) | st.just(["l"] * 16) | st.just(["l"] * 17),
        "expires": st.integers(-3, 10),
    },
)
_good = st.fixed_dictionaries({"topic": st.just("orders"), "payload": st.just("")})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_good, _good, _messages), min_size=1, max_size=12))
def test_what_is_accepted_is_what_comes_in_by_http(tmp_path_factory: pytest.TempPathFactory, items: list[Any]) -> None:
    first_refused, rows = None, []
    for number, item in enumerate(items):
        due = WINDOW + number
        body = {key: value for key, value in item.items() if key != "expires"} | {"deliver_at": due}
        row = {"due_ms": due} | {key: value for key, value in item.items() if key not in ("expires", "headers")}
        row |= {key: row[key].encode() for key in ("payload", "key") if key in row}
        if "headers" in item:
            row["headers"] = [header(name, value.encode()) for name, value in item["headers"].items()]
        if "expires" in item:
            body["expires_at"] = row["expires_ms"] = due + item["expires"]
        rows.append(row)
        try:
            GATE.draft(body, WINDOW)
        except Rejected:
            first_refused = number if first_refused is None else first_refused
    path = file_of(tmp_path_factory.mktemp("same") / "a.parquet", rows)
    try:
        assert inspect(path, SAME).rows == len(items)
        assert first_refused is None
    except BadDelayFile as error:
        assert error.row == first_refused, error


# --- docs/guides/delay-files.md ---------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "delay-files.md").read_text()


def test_the_example_in_the_docs_writes_what_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = PAGE.partition("### pyarrow\n\n```python\n")[2].partition("```")[0]
    exec(program, {})
    files = sorted(tmp_path.glob("*.parquet"))
    found = [inspect(file, ImportLimits()) for file in files]
    assert [f"{one.window}.parquet" for one in found] == [file.name for file in files]
    assert len(files) == 4 and sum(one.rows for one in found) == 20_000


def test_the_examples_of_other_writers_in_the_docs_write_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = 1_830_297_600_000
    rows = [{"due_ms": at + n, "topic": "reminders", "payload": b"%d" % n} for n in (5, 3, 4)]
    messages = pa.Table.from_pylist(rows).to_pandas()
    exec(PAGE.partition("### pandas\n\n```python\n")[2].partition("```")[0], {"df": messages})
    assert inspect(tmp_path / f"{at}.parquet", ImportLimits()).rows == 3
    (tmp_path / f"{at}.parquet").unlink()
    with duckdb.connect() as database:
        database.register("messages", messages.drop(columns="window"))
        database.execute(PAGE.partition("### DuckDB\n\n```sql\n")[2].partition("```")[0])
    assert inspect(tmp_path / f"{at}.parquet", ImportLimits()).rows == 3


def test_the_docs_say_what_is_refused(tmp_path: Path) -> None:
    """The sentences in it are those of real refusals."""
    at = 1_830_297_600_000
    unsorted = [message(0, due_ms=at + (0 if n == 17 else 250)) for n in range(18)]
    spaced = [message(0, due_ms=at, topic="or ders" if n == 3 else "orders") for n in range(4)]
    three = list(SCHEMA)[:3]
    path = tmp_path / "messages.parquet"

    def says() -> str:
        with pytest.raises(BadDelayFile) as refused:
            inspect(path, LIMITS)
        return str(refused.value)

    said = []
    for rows, schema in (
        (unsorted, SCHEMA),
        (spaced, SCHEMA),
        (unsorted, pa.schema([*three, pa.field("expires_at", pa.int64())])),
        (unsorted, pa.schema([pa.field("due_ms", pa.timestamp("ms")), *three[1:]])),
    ):
        file_of(path, rows, schema)
        said.append(says())
    assert "\n".join(said) + "\nmessages.parquet is not Parquet, or damaged: " in PAGE
    assert PAGE.count("\n| `") == len(SCHEMA) + len(OWN)
    for name in [*SCHEMA.names, *OWN]:
        assert f"\n| `{name}` | " in PAGE
    _, _, sealed = PAGE.partition("\n## Sealed files\n")
    assert re.findall(r"`(\w+)`", sealed.partition("The metadata")[0]) == [
        "due_ms",
        "offset",
        "row",
        "topic",
        "key",
        "payload",
        "head",
    ]
    assert f"at most {ROWS_PER_GROUP:,} rows" in PAGE
