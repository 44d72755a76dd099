"""Reading imported files: every row is the one that its message would have got as a command."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.model.errors import CorruptStore
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import LOWEST, checksum, make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.record import pack_headers
from duemq.model.messages.row import read_row, row_of, without_payload
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.columns import SCHEMA
from duemq.storage.delay_files.imported_file import ImportedFile, checksum_of, dues
from duemq.storage.imports.import_file import import_file
from duemq.storage.limits import ImportLimits
from tests.support.node.import_files import WINDOW, file_of, message
from tests.support.python_calls import python_calls

SHARD, OFFSET = 7, 2**33 + 5
IDS = IdCodec(b"k" * 32)

_headers = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("hä%"), "value": st.none() | st.binary(max_size=40)}), max_size=3
)
_rows = st.fixed_dictionaries(
    {
        # Lengths of 37 are "%" where a row has them.
        "topic": st.sampled_from(["orders", "t" * 37, "t" * 249]),
        "payload": st.none() | st.binary(max_size=40) | st.just(b"%d%b"),
    },
    optional={
        "key": st.none() | st.binary(max_size=40) | st.just(b"%" * 37),
        "headers": st.none() | _headers,
        "labels": st.none() | st.lists(st.sampled_from(["a b", "ü", "%s"]), max_size=3),
        "expires_ms": st.none() | st.integers(WINDOW + WINDOW_MS, WINDOW + 2 * WINDOW_MS),
    },
)


def expected(rows: list[dict[str, Any]], offset: int = OFFSET) -> dict[bytes, bytes]:
    """What the rows would be if each had come as a command."""
    found = {}
    for number, row in enumerate(rows):
        count, packed = pack_headers((header["name"], header["value"]) for header in row.get("headers") or ())
        draft = Draft(
            row["topic"], row["payload"], row["due_ms"], row.get("key"), count, packed,
            tuple(row.get("labels") or ()), row.get("expires_ms") or 0,
        )  # fmt: skip
        id_ = IDS.issue_bytes(SHARD, row["due_ms"], offset, number)
        found[make_key(row["due_ms"], offset, number)] = row_of(schedule_frame(draft, row["due_ms"]), id_)
    return found


def imported(folder: Path, rows: list[dict[str, Any]], window: int = WINDOW) -> ImportedFile:
    intake = import_file(file_of(folder / "source.parquet", rows), folder / "imported.parquet", window, ImportLimits())
    return ImportedFile(folder / "imported.parquet", intake.about(SHARD, OFFSET), IDS)


def joined(parts: Any) -> dict[bytes, bytes]:
    return {key: row for keys, rows in parts for key, row in zip(keys, rows, strict=True)}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), _rows), min_size=1, max_size=12), st.data())
def test_every_row_is_that_of_its_command(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[int, dict[str, Any]]], data: st.DataObject
) -> None:
    rows = [row | {"due_ms": WINDOW + at} for at, row in sorted(some, key=lambda each: each[0])]
    file = imported(tmp_path_factory.mktemp("imported"), rows)
    wanted = expected(rows)
    assert list(joined(file.whole()).items()) == list(wanted.items())
    assert file.rows(wanted) == wanted
    one = data.draw(st.sampled_from(sorted(wanted)))
    heads = {key: read_row(without_payload(row))._replace(payload=b"") for key, row in wanted.items()}
    assert {key: read_row(row) for key, row in file.rows(wanted, payload=False).items()} == heads
    assert file.rows([one]) == {one: wanted[one]}
    assert list(joined(file.parts(one))) == [key for key in wanted if key > one]
    file.close()


def test_a_row_with_headers_is_built_without_a_command(tmp_path: Path) -> None:
    """Through a command it took 9 calls a row."""
    headers = [{"name": "trace", "value": b"1"}]
    calls = []
    for count in (100, 200):
        (folder := tmp_path / str(count)).mkdir()
        file = imported(folder, [message(at, headers=headers, labels=["a"]) for at in range(count)])
        calls.append(python_calls(lambda file=file: list(file.parts())))  # type: ignore[misc]
        file.close()
    assert (calls[1] - calls[0]) / 100 < 8


def test_a_column_of_nulls_alone_has_tombstones(tmp_path: Path) -> None:
    """Pandas gives it the type null."""
    rows = [message(at, payload=None) for at in range(3)]
    table = pa.Table.from_pylist([{name: row[name] for name in ("due_ms", "topic", "payload")} for row in rows])
    assert pa.types.is_null(table["payload"].type)
    pq.write_table(table, tmp_path / "source.parquet")
    intake = import_file(tmp_path / "source.parquet", tmp_path / "imported.parquet", WINDOW, ImportLimits())
    file = ImportedFile(tmp_path / "imported.parquet", intake.about(SHARD, OFFSET), IDS)
    assert [read_row(row).payload for row in joined(file.whole()).values()] == [None] * 3


@pytest.mark.parametrize("window", [0, 10**12 // WINDOW_MS * WINDOW_MS, 10**13 // WINDOW_MS * WINDOW_MS])
def test_times_that_are_shown_in_other_lengths(tmp_path: Path, window: int) -> None:
    edge = min((10**12, 10**13), key=lambda at: abs(at - window))
    rows = [message(0, due_ms=due) for due in ((0, 9, 10) if window == 0 else (edge - 1, edge, edge + 1))]
    file = imported(tmp_path, rows, window)
    assert joined(file.whole()) == file.rows(expected(rows)) == expected(rows)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportedFile, dict[bytes, bytes]]:
    """Three row groups, and a due time that reaches over the end of the first."""
    rows = [message(at // 100, key=b"k" if at % 3 else None) for at in range(10_000)]
    return imported(tmp_path_factory.mktemp("large"), rows), expected(rows)


def test_look_ups(large: tuple[ImportedFile, dict[bytes, bytes]]) -> None:
    file, wanted = large
    some = {key: wanted[key] for key in random.Random(1).sample(sorted(wanted), 300)}
    due = WINDOW + 20
    others = [
        make_key(due, OFFSET, 100), make_key(due, OFFSET, 10_000), make_key(due, OFFSET, 2**32 - 1),
        make_key(due, OFFSET + 1, 2_000), make_key(due, 0, 0), LOWEST,
    ]  # fmt: skip
    assert file.rows([*others, *some]) == some
    assert file.rows(others) == file.rows([]) == {}
    assert make_key(due, OFFSET, 2_000) in wanted
    edges = {key: wanted[key] for key in sorted(wanted)[4_094:4_098]}
    assert file.rows(edges) == edges


def test_a_look_up_reads_one_row_group(
    large: tuple[ImportedFile, dict[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, wanted = large
    read, original = list[int](), file._read

    def noted(group: int, **named: Any) -> pa.Table:
        read.append(group)
        return original(group, **named)

    monkeypatch.setattr(file, "_read", noted)
    keys = sorted(wanted)
    assert file.rows([keys[4_100], keys[4_200]]) and file.rows([keys[0]]) and file.rows([keys[-1]])
    assert read == [1, 0, 2]


def test_parts(large: tuple[ImportedFile, dict[bytes, bytes]]) -> None:
    file, wanted = large
    keys = sorted(wanted)
    assert [len(part) for part, _ in file.parts()] == [4_096, 4_096, 1_808]
    afters = [keys[at] for at in (0, 4_094, 4_095, 4_096, 5_000, 9_998, 9_999)]
    afters += [LOWEST, make_key(WINDOW + 40, 0, 0), make_key(WINDOW + 40, 2**40, 0), make_key(WINDOW + 10**6, 0, 0)]
    for after in afters:
        assert joined(file.parts(after)) == {key: wanted[key] for key in keys if key > after}


def test_what_is_known_of_the_keys(large: tuple[ImportedFile, dict[bytes, bytes]]) -> None:
    file, wanted = large
    keys = sorted(wanted)
    assert checksum_of(file.path, OFFSET) == checksum(keys)
    assert np.concatenate([*dues(file.path)]).tolist() == [int.from_bytes(key[:8], "big") for key in keys]
    about = file.about
    assert (about.shard, about.window, about.rows, about.offset) == (SHARD, WINDOW, 10_000, OFFSET)
    assert (about.first, about.last) == (keys[0].hex(), keys[-1].hex())
    assert About.decode(about.encode()) == about


def test_what_a_table_of_before_says() -> None:
    raw = b'{"shard":1,"window":2,"rows":3,"first":"00","last":"01","content":"02","format":1}'
    assert About.decode(raw) == About(1, 2, 3, "00", "01", "02") and About.decode(raw).offset is None


def test_files_that_others_wrote_are_read_where_they_are_linked(tmp_path: Path) -> None:
    """Nulls in place of empty lists, row groups of any size, and nothing of Arrow in the file."""
    rows = [message(at, labels=["l"] if at % 5 == 0 else None, key=b"k" if at % 3 else None) for at in range(1_000)]
    nullable = pa.schema([*(field.with_nullable(True) for field in SCHEMA), pa.field("name", pa.string())])
    rows = [row | {"name": f"n-{at}"} for at, row in enumerate(rows)]
    with pq.ParquetWriter(tmp_path / "source.parquet", nullable, store_schema=False) as writer:
        for start, end in ((0, 1), (1, 400), (400, 1_000)):
            writer.write_table(pa.Table.from_pylist(rows[start:end], nullable))
    target = tmp_path / "imported.parquet"
    intake = import_file(tmp_path / "source.parquet", target, WINDOW, ImportLimits(), link=True)
    assert target.samefile(tmp_path / "source.parquet")
    file = ImportedFile(target, intake.about(SHARD, OFFSET), IDS)
    assert joined(file.whole()) == file.rows(expected(rows)) == expected(rows)
    assert [len(keys) for keys, _ in file.parts()] == [1, 399, 600]


# --- damage -----------------------------------------------------------------------------------------------------------


def test_damage_is_found_before_anything_is_delivered(tmp_path: Path) -> None:
    """Any flipped bit, the footer included; and a look-up says nothing that is not so, or that the file is damaged."""
    rows = [message(at, key=b"k", labels=["l"]) for at in range(50)]
    file = imported(tmp_path, rows)
    wanted, path, about = expected(rows), file.path, file.about
    sound = path.read_bytes()
    for at in range(0, len(sound), 7):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :])
        with pytest.raises(CorruptStore, match=r"imported\.parquet"):
            next(ImportedFile(path, about, IDS).whole())
        try:
            found = ImportedFile(path, about, IDS).rows(wanted)
        except CorruptStore:
            continue
        assert found.items() <= wanted.items()
    for cut in (0, 3, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:cut])
        with pytest.raises(CorruptStore, match=r"imported\.parquet"):
            ImportedFile(path, about, IDS)
        with pytest.raises(CorruptStore, match=r"imported\.parquet"):
            checksum_of(path, OFFSET)


def test_another_file_in_its_place(tmp_path: Path) -> None:
    file = imported(tmp_path, [message(at) for at in range(50)])
    other = tmp_path / "other.parquet"
    import_file(file_of(tmp_path / "b.parquet", [message(at) for at in range(51)]), other, WINDOW, ImportLimits())
    with pytest.raises(CorruptStore, match="51 rows of 50"):
        ImportedFile(other, file.about, IDS)
    import_file(file_of(tmp_path / "b.parquet", [message(at) for at in range(1, 51)]), other, WINDOW, ImportLimits())
    with pytest.raises(CorruptStore, match="is not what was imported"):
        next(ImportedFile(other, file.about, IDS).whole())
    other.unlink()
    with pytest.raises(CorruptStore, match="is missing or damaged"):
        ImportedFile(other, file.about, IDS)


def test_sealed_files_are_not_for_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a sealed file"):
        ImportedFile(tmp_path / "x", About(1, 2, 3, "", "", ""), IDS)
