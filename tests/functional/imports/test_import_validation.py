"""Taking in files that others wrote: what becomes of the right ones, whoever wrote them and whatever breaks."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.model.errors import BadDelayFile, DiskFull, StoreFailed
from duemq.model.timing import LAST_MS
from duemq.storage.delay_files.columns import SCHEMA, is_normal
from duemq.storage.delay_files.sealed_file import GROUP_BYTES
from duemq.storage.imports.import_file import ImportedFileInfo, import_file, inspect
from duemq.storage.limits import ImportLimits
from tests.support.node.import_files import LIMITS, WINDOW, file_of, header, message

# --- what is taken in -------------------------------------------------------------------------------------------------

FULL = message(
    9, key=b"k", headers=[header("X-Ä", b"\xff"), header("X-Ä", b"")], labels=["a b", "ü"], expires_ms=WINDOW + 9
)


def test_what_is_taken_in(tmp_path: Path) -> None:
    rows = [message(at) for at in range(10_000)] + [FULL | {"due_ms": WINDOW + 9_999, "expires_ms": LAST_MS}]
    path = file_of(tmp_path / "a.parquet", rows)
    target, seen, steps = tmp_path / "shard" / "far" / "000001.parquet", list[int](), list[str]()
    found = import_file(path, target, WINDOW, ImportLimits(), progress=seen.append, failpoint=steps.append)
    sha256, content = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, target))
    assert found == ImportedFileInfo(WINDOW, 10_001, WINDOW, WINDOW + 9_999, path.stat().st_size, sha256, content)
    assert inspect(path, ImportLimits()) == ImportedFileInfo(WINDOW, 10_001, WINDOW, WINDOW + 9_999, found.size, sha256)
    assert (seen, steps) == ([10_001], ["written", "synced", "named"])
    assert [*target.parent.iterdir()] == [target]

    table = pq.read_table(target)
    assert table.schema.equals(SCHEMA) and table.num_rows == 10_001
    assert table["payload"].to_pylist() == [row["payload"] for row in rows]
    assert table.slice(10_000).to_pylist() == [rows[-1]]
    assert table.slice(0, 1).to_pylist() == [
        message(0, key=None, headers=[], labels=[], expires_ms=None)
    ]  # fmt: skip
    metadata = pq.read_metadata(target)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4_096, 4_096, 1_809]
    assert metadata.row_group(0).column(2).compression == "ZSTD"
    with pq.ParquetFile(target) as file:
        assert is_normal(file)


def test_row_groups_do_not_follow_those_of_the_source(tmp_path: Path) -> None:
    rows = [message(at // 7) for at in range(9_000)]
    path = file_of(tmp_path / "a.parquet", rows, row_group_size=613)
    import_file(path, tmp_path / "t.parquet", WINDOW, LIMITS)
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4_096, 4_096, 808]


@pytest.mark.parametrize("repeated", [True, False])
def test_large_payloads_make_small_row_groups(tmp_path: Path, repeated: bool) -> None:
    """Also where the file holds each only once, and is small."""
    rows = [message(at, payload=b"x" * 100_000 if repeated else os.urandom(100_000)) for at in range(400)]
    path, seen = file_of(tmp_path / "a.parquet", rows, use_dictionary=repeated), list[int]()
    import_file(path, tmp_path / "t.parquet", WINDOW, ImportLimits(), progress=seen.append)
    assert len(seen) == 2 and seen[0] * 100_000 <= 32 << 20  # at a time
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [41] * 9 + [31]
    assert 41 == GROUP_BYTES // (100_000 + 100)
    assert pq.read_table(tmp_path / "t.parquet")["payload"].to_pylist() == [row["payload"] for row in rows]


TEXTS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]  # fmt: skip
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int16(), pa.binary())]


@pytest.mark.parametrize("stored", [True, False])  # whether Arrow's own types are kept in the file
@pytest.mark.parametrize("number", range(9))
def test_types_as_others_write_them(tmp_path: Path, number: int, stored: bool) -> None:
    text, raw = TEXTS[number % len(TEXTS)], (TEXTS + BYTES)[number]
    flat, value = (of.value_type if pa.types.is_dictionary(of) else of for of in (text, raw))
    if pa.types.is_string_view(flat) or pa.types.is_binary_view(value):
        flat, value = pa.string(), pa.binary()  # Parquet of Arrow has no views within lists
    pair = pa.struct({"value": value, "name": flat})
    kinds = [pa.list_(pair), pa.large_list(pair), pa.map_(flat, value)]
    headers = kinds[number % 3]
    rows = [FULL, message(10), message(10, key=b"2", headers=[], labels=[])]
    table = pa.table({
        "labels": pa.array([row.get("labels") for row in rows], pa.large_list(flat) if number % 2 else pa.list_(flat)),
        "headers": _headers([row.get("headers") for row in rows], headers),
        "expires_ms": pa.array([row.get("expires_ms") for row in rows], pa.int64()),
        "payload": pa.array(["a", "b", "ß"]).cast(raw),
        "key": pa.array([None, "b", None]).cast(raw),
        "topic": pa.array(["a", "b", "a"]).cast(text),
        "due_ms": pa.array([row["due_ms"] for row in rows]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", store_schema=stored)
    import_file(tmp_path / "a.parquet", tmp_path / "t.parquet", WINDOW, LIMITS)
    found = pq.read_table(tmp_path / "t.parquet")
    assert found.schema.equals(SCHEMA)
    for row, (topic, payload, key), is_ in zip(
        rows, [("a", b"a", None), ("b", b"b", b"b"), ("a", "ß".encode(), None)], found.to_pylist(), strict=True
    ):
        wanted = {"headers": [], "labels": [], "expires_ms": None} | row
        if not pa.types.is_binary(value) and not pa.types.is_large_binary(value):
            wanted["headers"] = [pair | {"value": pair["value"].replace(b"\xff", b"?")} for pair in wanted["headers"]]
        assert is_ == wanted | {"topic": topic, "payload": payload, "key": key}


def _headers(rows: list[Any], of: pa.DataType) -> pa.Array:
    """`rows` in any of the types that headers may have."""
    text = not any(map(pa.types.is_binary, _leaves(of))) and not any(map(pa.types.is_large_binary, _leaves(of)))
    pairs = [
        row and [(h["name"], h["value"].replace(b"\xff", b"?").decode() if text else h["value"]) for h in row]
        for row in rows
    ]
    if pa.types.is_map(of):
        return pa.array(pairs, of)
    return pa.array([row and [{"name": name, "value": value} for name, value in row] for row in pairs], of)


def _leaves(of: pa.DataType) -> list[pa.DataType]:
    return [of.key_type, of.item_type] if pa.types.is_map(of) else [field.type for field in of.value_type]


def test_optional_columns_of_nothing(tmp_path: Path) -> None:
    """What pandas writes for a column of None."""
    table = pa.table({"due_ms": [WINDOW], "topic": ["t"], "payload": ["p"], "key": pa.nulls(1), "headers": pa.nulls(1)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert import_file(tmp_path / "a.parquet", tmp_path / "t.parquet", WINDOW, LIMITS).rows == 1


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_file_of_the_right_form_is_linked(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(at) for at in range(5_000)])
    first = import_file(path, tmp_path / "b.parquet", WINDOW, LIMITS, link=True)
    assert not (tmp_path / "b.parquet").samefile(path)  # a row group is too large, and columns are missing
    second = import_file(tmp_path / "b.parquet", tmp_path / "c.parquet", WINDOW, LIMITS, link=True)
    assert (tmp_path / "c.parquet").samefile(tmp_path / "b.parquet")
    assert second.content == second.sha256 == first.content
    again = import_file(tmp_path / "b.parquet", tmp_path / "c.parquet", WINDOW, LIMITS, link=True)
    assert again == second and not (tmp_path / "c.new").exists()


def test_a_link_is_validated_too(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(1, key=b"x" * 9, headers=[], labels=[])])
    with pytest.raises(BadDelayFile, match="row 0, column key"):
        import_file(path, tmp_path / "b.parquet", WINDOW, LIMITS, link=True)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_links_are_not_possible_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = file_of(tmp_path / "a.parquet", [message(1)])

    def no_link(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "link", no_link)
    assert import_file(path, tmp_path / "b.parquet", WINDOW, LIMITS, link=True).rows == 1
    assert not (tmp_path / "b.parquet").samefile(path)


# --- faults -----------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    pass


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("step", ["written", "synced", "named"])
def test_a_crash_leaves_no_half_file(tmp_path: Path, step: str, link: bool) -> None:
    path, target = file_of(tmp_path / "a.parquet", [message(1)]), tmp_path / "b.parquet"

    def crash(at: str) -> None:
        if at == step:
            raise Crash

    with pytest.raises(Crash):
        import_file(path, target, WINDOW, LIMITS, link=link, failpoint=crash)
    assert target.exists() == (step == "named")
    target.with_suffix(".new").write_bytes(b"of a process that was killed")
    import_file(path, target, WINDOW, LIMITS, link=link)
    assert pq.read_metadata(target).num_rows == 1
    assert not target.with_suffix(".new").exists()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)])
def test_a_failing_disk_is_not_the_files_fault(tmp_path: Path, number: int, kind: type[Exception]) -> None:
    path = file_of(tmp_path / "a.parquet", [message(1)])

    def fails(_: str) -> None:
        raise OSError(number, "the disk")

    with pytest.raises(kind):
        import_file(path, tmp_path / "b.parquet", WINDOW, LIMITS, failpoint=fails)
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.parquet", [message(1)])

    def changed(_: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    with pytest.raises(BadDelayFile, match="was changed while it was read"):
        import_file(path, tmp_path / "b.parquet", WINDOW, LIMITS, progress=changed)
    assert [*tmp_path.iterdir()] == [path]
