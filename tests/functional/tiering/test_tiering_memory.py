"""What delay files take of memory is bounded in bytes, whatever their messages weigh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from duemq.delay.core.command_batch import understand
from duemq.delay.replica import prefetch
from duemq.model.log.ledger import START
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import LOWEST, make_key
from duemq.model.messages.message import CANCEL, MOVE, Change, Draft, change_frame, schedule_frame
from duemq.model.messages.plain import RecordPosition
from duemq.model.messages.record import StoredRecord
from duemq.model.messages.row import row_of
from duemq.model.timing import WINDOW_MS
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.delay_files import sealed_file
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.delay_files.reader import DelayFileReader
from duemq.storage.delay_files.sealed_file import GROUP_BYTES, DelayFile, parts_of, write
from duemq.storage.jobs.jobs import LoadJob, RewriteJob, SealJob, TieringJob, encode, job_file
from duemq.storage.keyspace import ROW, LedgerPosition
from duemq.storage.rocksdb import Memory
from duemq.storage.shard import change_journal
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.store import ShardStore

WINDOW = 1_000_000 * WINDOW_MS
IDS = IdCodec(b"s" * 32)
MIB = 1 << 20


def large(number: int, size: int = MIB) -> tuple[bytes, bytes]:
    """Key and row of a message whose payload compresses well: memory is what counts here."""
    due = WINDOW + number
    draft = Draft("orders", b"%d" % number + bytes(size), due)
    return make_key(due, number, 0), row_of(schedule_frame(draft, due), IDS.issue_bytes(0, due, number))


def written(path: Path, count: int) -> About:
    return write(path, 0, WINDOW, parts_of(large(number) for number in range(count)))


@contextmanager
def arrow_peak() -> Iterator[list[int]]:
    """How many bytes Arrow had at most, once it is over."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    peak: list[int] = []
    pa.set_memory_pool(pool)
    try:
        yield peak
    finally:
        pa.set_memory_pool(before)
        peak.append(pool.max_memory())


@pytest.mark.parametrize(("payload", "most"), [(True, 8 * GROUP_BYTES), (False, MIB)])
def test_a_look_up_reads_one_small_row_group(payload: bool, most: int, tmp_path: Path) -> None:
    written(tmp_path / "f.parquet", 64)
    key, row = large(40)
    with arrow_peak() as peak:
        file = DelayFile(tmp_path / "f.parquet")
        found = file.rows([key], payload=payload)
    assert found[key] == row[: len(found[key])] and (not payload or found[key] == row)
    assert peak[0] <= most
    assert all(file.group_bytes(group) <= GROUP_BYTES + MIB for group in file.groups(key))
    assert file.footer_bytes < 64 * 1024


def test_a_file_of_before_is_read_as_it_is(tmp_path: Path) -> None:
    """All rows in one group, whatever they weigh."""
    keys, rows = zip(*(large(number) for number in range(20)), strict=True)
    write(tmp_path / "f.parquet", 0, WINDOW, [(keys, rows)])
    file = DelayFile(tmp_path / "f.parquet")
    assert file.rows([keys[7]]) == {keys[7]: rows[7]}
    assert [list(keys), list(rows)] == [list(part) for part in next(file.whole())]


def test_a_message_among_many_of_its_ms_is_looked_for_in_few_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "ROWS_PER_GROUP", 4)
    keys = [make_key(WINDOW + (n > 5) + (n > 390), n, 0) for n in range(400)]
    write(tmp_path / "f.parquet", 0, WINDOW, parts_of((key, large(n, 10)[1]) for n, key in enumerate(keys)))
    file = DelayFile(tmp_path / "f.parquet")
    for number, key in enumerate(keys):
        assert number // 4 in file.groups(key) and len(file.groups(key)) <= 3
        assert key in file.rows([key]) and file.holds([key]) == {key}
    assert not file.holds([make_key(WINDOW + 1, 400, 0), make_key(WINDOW, 7, 0)])


def test_parts_that_are_kept_are_bounded(tmp_path: Path) -> None:
    files = [CatalogFile(written(tmp_path / CatalogFile.name_of(WINDOW, number), 8), number) for number in range(1, 13)]
    reader = DelayFileReader(tmp_path, IDS)
    for file in files:
        assert reader.part(file, LOWEST, 1) is not None
    assert 1 < sum(reader.has_part(file, LOWEST) for file in files) <= 32 * MIB // (3 * MIB)
    reader.close()


def test_what_comes_for_windows_that_are_sealed_is_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_journal, "_MAX_BYTES", 10 * MIB)
    watching = Journal([WINDOW])
    for number in range(20):
        key, row = large(number)
        watching.record([(ROW + key, row)], [], set())
    watched = watching.end(WINDOW)
    assert watched.overflown and not watched.placed


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [CANCEL, MOVE])
async def test_a_cycle_reads_a_bounded_amount_for_its_commands(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of rows in RocksDB: thousands of cancels of large messages may come at once."""
    monkeypatch.setattr(prefetch, "_MAX_BYTES", 4 * MIB)
    store = ShardStore(tmp_path / "000", Memory(8 * MIB, 8 * MIB), IDS)
    rows = dict(large(number) for number in range(60))
    store.write([(ROW + key, row) for key, row in rows.items()], [], LedgerPosition(START), {})
    frames = [change_frame(kind, key, WINDOW) for key in rows]
    commands = [StoredRecord(offset, 0, frame) for offset, frame in enumerate(frames)]
    left = understand(commands, RecordPosition(0, 1, IDS), None)
    sizes = []
    while left.commands:
        done, view = await prefetch.read_for(left, store, whole=False)
        assert done.commands
        some = [other.first_key for other in done.others.values() if isinstance(other, Change)]
        assert view.rows(some) == [rows[key] for key in some]
        sizes.append(len(done.commands))
        left = understand(commands[sum(sizes) :], RecordPosition(0, 1, IDS), None)
    assert max(sizes) <= 20
    one = [StoredRecord(at, 0, change_frame(kind, next(iter(rows)), WINDOW + at)) for at in range(60)]
    done, _ = await prefetch.read_for(understand(one, RecordPosition(0, 1, IDS), None), store, whole=False)
    assert len(done.commands) == 4, "each change writes the row once more"
    whole, _ = await prefetch.read_for(understand(commands, RecordPosition(0, 1, IDS), None), store, whole=True)
    assert len(whole.commands) == 60
    store.close()


# A process inherits the peak of the one that started it, and pytest has a large one: this small one stands between.
_MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "duemq.storage.tiering.tiering_process"], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak_of_child(job: TieringJob) -> tuple[list[Any], int]:
    """What it says, and the most memory that it had at once (bytes)."""
    command = [sys.executable, "-c", _MEASURED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(encode(job) + b"\n")
        child.stdin.flush()  # and stays open: the work ends with it
        *said, peak = map(orjson.loads, child.stdout)
    assert child.returncode == 0
    return said, peak


@pytest.mark.slow
def test_processes_that_seal_rewrite_and_load_hold_some_messages_at_a_time(tmp_path: Path) -> None:
    count, most = 400, 320 * MIB
    store = ShardStore(tmp_path / "000", Memory(8 * MIB, 8 * MIB), IDS)
    for number in range(count):
        key, row = large(number)
        store.write([(ROW + key, row)], [], LedgerPosition(START), {})
    make_checkpoint(store, tmp_path / "checkpoint", delay_files=False)
    store.close()
    path = tmp_path / CatalogFile.name_of(WINDOW, 1)
    (about,), peak = peak_of_child(SealJob(str(tmp_path / "checkpoint"), 0, [(WINDOW, str(path))]))
    assert (about["rows"], peak < most) == (count, True), peak
    dropped = tmp_path / "dropped"
    dropped.write_bytes(large(3)[0])
    files = [job_file(tmp_path, CatalogFile(About(**about), 1))]
    secret = (b"s" * 32).hex()
    again = tmp_path / CatalogFile.name_of(WINDOW, 2)
    (rewritten,), peak = peak_of_child(RewriteJob(0, secret, str(dropped), [(WINDOW, str(again), files)]))
    assert (rewritten["rows"], peak < most) == (count - 1, True), peak
    said, peak = peak_of_child(LoadJob(files, secret, str(dropped), str(tmp_path / "sst")))
    assert (said, peak < most) == ([count - 1], True), peak


@pytest.mark.slow
def test_a_node_with_a_window_of_large_messages_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    """400 messages of 1 MiB here; of 20,000: `python -m tests.chaos.large_window FOLDER 20000`."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.large_window", str(tmp_path / "node"), "400"],
        stdout=subprocess.PIPE, check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    found = orjson.loads(done.stdout)
    assert found["delivered"] == 350
    assert max(found["peaks"].values()) < 1 << 30, found["peaks"]
