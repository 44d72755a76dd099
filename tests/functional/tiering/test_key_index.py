"""Keys are looked up in delay files without Arrow: what is found is what Arrow finds, whatever a file looks like."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.model.errors import DamagedFile
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.row import row_of
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files import key_index
from duemq.storage.delay_files.about import About, BadPage
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.delay_files.columns import SCHEMA
from duemq.storage.delay_files.imported_file import ImportedFile
from duemq.storage.delay_files.key_index import SealedKeys
from duemq.storage.delay_files.reader import DelayFileReader
from duemq.storage.delay_files.sealed_file import DelayFile, parts_of, write

WINDOW = 1_800_000_000_000
IDS = IdCodec(b"s" * 32)
OFFSET = 77


def row(key_due: int, offset: int) -> bytes:
    return row_of(schedule_frame(Draft("one", b"p", key_due), key_due), IDS.issue_bytes(0, key_due, offset))


def sealed(folder: Path, keys: Sequence[tuple[int, int, int]]) -> CatalogFile:
    rows = ((make_key(*key), row(key[0], key[1])) for key in sorted(keys))
    return CatalogFile(write(folder / CatalogFile.name_of(WINDOW, 1), 0, WINDOW, parts_of(rows)), 1)


def many_keys(count: int) -> list[tuple[int, int, int]]:
    """Few due times, some with rows of imported files that were rewritten."""
    chance = random.Random(1)
    dues = [chance.randrange(WINDOW_MS) for _ in range(count // 3)]
    return list({(WINDOW + chance.choice(dues), chance.randrange(500), chance.choice((0, 0, 7))) for _ in range(count)})


def present_keys(reader: DelayFileReader, file: CatalogFile, keys: Sequence[bytes]) -> set[bytes]:
    return reader.found_in_order([(key, [file]) for key in keys], 1 << 40)[0]


def holds(index: SealedKeys, keys: Iterable[bytes]) -> set[bytes]:
    by_group: dict[int, list[bytes]] = {}
    for key in keys:
        for group in index.groups(key):
            by_group.setdefault(group, []).append(key)
    return index.holds(by_group)


def near_misses(keys: Sequence[tuple[int, int, int]]) -> list[bytes]:
    there = set(keys)
    others = {
        (due + by[0], offset + by[1], row + by[2])
        for due, offset, row in keys
        for by in ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1 << 40, 0), (0, 0, 1 << 31))
    }
    return [make_key(*key) for key in others - there if key[0] >= 0]


@pytest.mark.parametrize("count", [1, 50, 5_000])
def test_a_sealed_file_has_its_keys_and_no_other(tmp_path: Path, count: int) -> None:
    keys = many_keys(max(count, 3))
    file, packed = sealed(tmp_path, keys), [make_key(*key) for key in keys]
    others = near_misses(keys)
    index = DelayFile(tmp_path / file.name).key_index()
    assert holds(index, [*packed, *others]) == set(packed)
    reader = DelayFileReader(tmp_path, IDS)
    assert present_keys(reader, file, [*packed, *others]) == set(packed)
    assert DelayFile(tmp_path / file.name).holds([*packed, *others]) == set(packed)
    reader.close()


def test_so_many_in_one_ms_are_told_apart(tmp_path: Path) -> None:
    keys = [(WINDOW + 5, offset, 0) for offset in range(0, 6_000, 2)]
    index = DelayFile(tmp_path / sealed(tmp_path, keys).name).key_index()
    packed = [make_key(*key) for key in keys]
    assert holds(index, [*packed, *(make_key(WINDOW + 5, offset, 0) for offset in range(1, 6_000, 2))]) == set(packed)
    assert all(len(index.groups(key)) == 1 for key in packed[1:-1])


@pytest.mark.parametrize(
    "form", [{"compression": "snappy"}, {"use_dictionary": True}, {"data_page_version": "2.0"}, {"compression": "none"}]
)
def test_another_form_is_read_by_arrow(tmp_path: Path, form: dict[str, Any]) -> None:
    keys = many_keys(200)
    file, packed = sealed(tmp_path, keys), [make_key(*key) for key in keys]
    table = pq.read_table(tmp_path / file.name)
    options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True} | form
    with pq.ParquetWriter(tmp_path / file.name, table.schema, **options) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({b"duemq": file.about.encode()})
    reader = DelayFileReader(tmp_path, IDS)
    assert present_keys(reader, file, [*packed, *near_misses(keys)]) == set(packed)
    reader.close()


def test_pages_without_checksums_are_not_believed(tmp_path: Path) -> None:
    file = sealed(tmp_path, many_keys(200))
    table = pq.read_table(tmp_path / file.name)
    with pq.ParquetWriter(tmp_path / file.name, table.schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"duemq": file.about.encode()})
    with pytest.raises(BadPage):
        holds(DelayFile(tmp_path / file.name).key_index(), [make_key(*many_keys(200)[0])])


def test_every_damaged_byte_of_the_keys_is_noticed(tmp_path: Path) -> None:
    keys = many_keys(60)
    file, packed = sealed(tmp_path, keys), [make_key(*key) for key in keys]
    path = tmp_path / file.name
    group = pq.read_metadata(path).row_group(0)
    start = group.column(0).data_page_offset
    end = group.column(2).data_page_offset + group.column(2).total_compressed_size
    whole = path.read_bytes()
    index = DelayFile(path).key_index()
    for at in range(start, end):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x21,)) + whole[at + 1 :])
        reader = DelayFileReader(tmp_path, IDS)
        try:
            assert present_keys(reader, file, packed) == set(packed)  # of a header, what nobody needs
        except DamagedFile:
            pass
        try:
            assert holds(index, packed) == set(packed)
        except BadPage:
            pass
        reader.close()


@pytest.mark.parametrize("size", [0, 10, 300])
def test_a_file_that_is_cut_off_or_gone_is_damaged(tmp_path: Path, size: int) -> None:
    file = sealed(tmp_path, many_keys(300))
    path, key = tmp_path / file.name, make_key(*many_keys(300)[0])
    index = DelayFile(path).key_index()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadPage):
        holds(index, [key])
    path.unlink()
    with pytest.raises(DamagedFile):
        holds(index, [key])


@pytest.mark.parametrize(
    "form", [{}, {"use_dictionary": True}, {"compression": "gzip"}, {"write_page_checksum": False}]
)
def test_an_imported_file_has_its_keys_and_no_other(tmp_path: Path, form: dict[str, Any]) -> None:
    """Also a linked one, as others wrote it."""
    count = 9_000
    dues = sorted(WINDOW + random.Random(2).randrange(3_000) for _ in range(count))
    columns = {"due_ms": dues, "topic": ["one"] * count, "payload": [b"p"] * count}
    rows = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    path = tmp_path / CatalogFile.imported_name(WINDOW, OFFSET)
    path.parent.mkdir(parents=True)
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True} | form
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=4_000, **options)
    keys = [make_key(due, OFFSET, number) for number, due in enumerate(dues)]
    about = About(0, WINDOW, count, keys[0].hex(), keys[-1].hex(), "", offset=OFFSET)
    others = near_misses([(due, OFFSET, number) for number, due in enumerate(dues[:500])])
    others += [make_key(WINDOW, OFFSET + 1, 0), make_key(dues[-1], OFFSET, count)]
    reader = DelayFileReader(tmp_path, IDS)
    assert present_keys(reader, CatalogFile(about), [*keys, *others]) == set(keys)
    assert ImportedFile(path, about, IDS).holds([*keys, *others]) == set(keys)
    reader.close()


def test_a_bounded_number_of_row_groups_is_read_and_one_key_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.storage.delay_files.reader._KEYS_BYTES", 10)
    keys = [(WINDOW + n, n, 0) for n in range(5_000)]
    file, packed = sealed(tmp_path, keys), [make_key(*key) for key in keys]
    reader = DelayFileReader(tmp_path, IDS)
    lookups = [(key, [file]) for key in packed]
    monkeypatch.setattr("duemq.storage.delay_files.reader._OPENING_BYTES", 5)
    assert reader.found_in_order(lookups, 0) == (set(packed[:1]), 1, 15), "opened for the first"
    assert reader.found_in_order(lookups, 0) == (set(packed[:1]), 1, 10)
    assert reader.found_in_order(lookups, 19) == (set(packed[:1024]), 1024, 10)
    assert reader.found_in_order(lookups, 29) == (set(packed[:2048]), 2048, 20)
    assert reader.found_in_order(lookups, 1 << 40) == (set(packed), 5_000, 50)
    reader.close()


def test_an_index_is_kept_when_its_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = sealed(tmp_path, many_keys(100))
    reader, key = DelayFileReader(tmp_path, IDS), make_key(*many_keys(100)[0])
    assert present_keys(reader, file, [key]) == {key}
    reader.open_files.clear()
    monkeypatch.setattr(CatalogFile, "open", None)
    assert present_keys(reader, file, [key]) == {key}
    monkeypatch.undo()
    reader.forget([file])
    assert not len(reader.key_indexes)
    reader.close()


def test_an_index_is_small(tmp_path: Path) -> None:
    index = DelayFile(tmp_path / sealed(tmp_path, many_keys(3_000)).name).key_index()
    assert isinstance(index, SealedKeys) and index.size < 1_000
    assert key_index._BYTES < 1_000
