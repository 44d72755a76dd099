"""The parts of `duemq bench far` that can be wrong without anybody noticing: what it makes, sees and counts."""

import asyncio
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner

from duemq.bench import command as bench
from duemq.bench import command_far
from duemq.bench.clients import import_files
from duemq.bench.clients.cancels import CANCELLED, DELIVERED, PENDING, REFUSED, cancel_many
from duemq.bench.clients.import_files import WINDOW_MS, FilePlan, GeneratedColumns, write
from duemq.bench.clients.lookups import get_singly
from duemq.bench.clients.payloads import SEQUENCE
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.command_far import counts
from duemq.bench.far.imports import judged
from duemq.bench.far.stream import during, joined, ratio
from duemq.bench.far.waiting import sample
from duemq.bench.far.wheel import wheel
from duemq.bench.harness.progress_bar import ProgressScreen
from duemq.bench.harness.tally import Tally
from duemq.bench.plans.bench_steps import BenchStep
from duemq.bench.system import delay_files
from duemq.bench.system.delay_files import Span
from tests.unit.bench.test_bench_clients import Unpiped, serve

FIRST = 1_000_000 * WINDOW_MS


def test_counts_are_numbers_with_a_letter() -> None:
    assert counts("20000") == [20_000]
    assert counts("1M, 5m,0.5K") == [1_000_000, 5_000_000, 500]
    for wrong in ("", "1G", "-1", "1M,", "0", "0.0001K"):
        with pytest.raises(typer.BadParameter):
            counts(wrong)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["load"], [("load", 2_000_000)]),
        (["load", "--count", "20K"], [("load", 20_000)]),
        (["pending"], [("pending", 1_000_000), ("pending", 5_000_000), ("pending", 20_000_000)]),
        (["pending", "--count", "3K,4K", "--days", "2"], [("pending", 3_000), ("pending", 4_000)]),
        (["find"], [("find", 1_000_000), ("find", 10_000_000)]),
        (["find", "--count", "3K", "--no-indexed"], [("find", 3_000)]),
        (["wheel"], [("wheel", 18_000_000)]),
        (["import", "--count", "1M"], [("import", 1_000_000)]),
    ],
)
def test_commands_make_their_steps(
    monkeypatch: pytest.MonkeyPatch, command: list[str], expected: list[tuple[str, int]]
) -> None:
    steps: list[BenchStep] = []
    monkeypatch.setattr(bench, "_bench", lambda some, common: steps.extend(some))
    done = CliRunner().invoke(command_far.app, command)
    assert done.exit_code == 0, done.output
    assert [(step.name, step.parameters["count"]) for step in steps] == expected


def test_payloads_by_the_column_are_json_of_their_size() -> None:
    rows = GeneratedColumns(256, (1, 2)).make(41, 300)
    texts = [row.tobytes().decode() for row in rows]
    assert rows.shape == (300, 256)
    assert [int(text[SEQUENCE]) for text in texts] == list(range(41, 341))
    read = [json.loads(text) for text in texts]
    assert len({each["order"] for each in read}) == 300
    assert len({each["note"] for each in read}) == 300
    assert all(len(each["order"]) == 12 and 1000 <= each["amount"] < 10_000 for each in read)


@pytest.mark.parametrize("size", [20, 60, 146, 147, 3000, 200_000])
def test_payloads_by_the_column_of_any_size_have_their_number(size: int) -> None:
    rows = GeneratedColumns(size, (1, 2)).make(7, 3)
    assert rows.shape == (3, size)
    assert [int(row.tobytes()[SEQUENCE]) for row in rows] == [7, 8, 9]
    with pytest.raises(ValueError, match="sequence number"):
        GeneratedColumns(19, (1, 2))


def test_files_hold_what_their_plan_says(tmp_path: Path) -> None:
    plan = FilePlan(FIRST, files=2, rows=10_000, topic="orders", payload_bytes=100, seed=5)
    files = [pq.ParquetFile(write(plan, tmp_path, number)) for number in range(2)]
    assert [file.metadata.num_rows for file in files] == [10_000] * 2
    assert all(
        file.metadata.row_group(group).num_rows <= import_files.ROWS_PER_GROUP
        for file in files
        for group in range(file.num_row_groups)
    )
    tables = [file.read() for file in files]
    assert tables[0].schema.equals(import_files.SCHEMA)
    for number, table in enumerate(tables):
        dues = table["due_ms"].to_pylist()
        assert all(one <= other for one, other in pairwise(dues))
        assert plan.window(number) <= dues[0] and dues[-1] < plan.window(number + 1)
        assert dues == plan.dues(number).tolist()
        assert set(table["topic"].to_pylist()) == {"orders"}
    seqs = [int(payload[SEQUENCE]) for table in tables for payload in table["payload"].to_pylist()]
    assert seqs == list(range(20_000))
    complete = pq.read_table(write(replace(plan, complete=True), tmp_path, 0))
    assert complete.schema.equals(import_files.COMPLETE)
    assert complete.select(import_files.SCHEMA.names).equals(tables[0])
    assert [complete[name].null_count for name in complete.column_names] == [0] * 3 + [10_000] * 4
    notes = [set(payload[20:] for payload in table["payload"].to_pylist()) for table in tables]
    assert len(notes[0] & notes[1]) < 100
    assert plan.dues(0).tolist() != (plan.dues(1) - WINDOW_MS).tolist()


def test_what_was_delivered_of_a_file_is_judged() -> None:
    plan = FilePlan(FIRST, files=3, rows=6, topic="t")
    dues = np.concatenate([plan.dues(number) for number in range(3)])

    def read(*seqs: int, early: int = 0, other_due: int = 0) -> dict[str, float]:
        of = np.array(seqs)
        due = dues[of] + other_due
        received = ReceivedRecords(of, due, due + 5.0 - early, np.zeros_like(of), [], 1, 0)
        return {figure.key: figure.value for figure in judged(plan, 1, received, float(dues[10]))}

    sound = {"file_read": 4, "file_lost": 0, "file_twice": 0, "file_early": 0, "file_wrong": 0}
    assert read(6, 7, 8, 9) == sound
    assert read(6, 7, 8, 9, 10, 11) == sound | {"file_read": 6}  # they may have come, and need not
    assert read(0, 3, 6, 7, 8, 9) == sound  # the file before it was not read in time, or cancelled in part
    assert read(6, 8, 9)["file_lost"] == 1
    assert read(6, 7, 7, 8, 9)["file_twice"] == 1
    assert read(6, 7, 8, 9, early=6)["file_early"] == 4
    assert read(6, 7, 8, 9, other_due=1)["file_wrong"] == 4
    assert read(6, 7, 8, 9, 12)["file_wrong"] == 1  # of the file after it


def test_work_on_delay_files_is_seen(tmp_path: Path) -> None:
    assert delay_files.counts(None) == delay_files.counts(tmp_path) == delay_files.DelayFileCounts(0, frozenset())
    window = tmp_path / "shards" / "000" / "far" / "1800000"
    window.mkdir(parents=True)
    (window / "000001.parquet").touch()
    assert delay_files.counts(tmp_path) == delay_files.DelayFileCounts(1, frozenset())
    linked = tmp_path / "shards" / "000.sealing" / "far" / "1800000"
    linked.mkdir(parents=True)
    (linked / "000001.parquet").touch()
    assert delay_files.counts(tmp_path) == delay_files.DelayFileCounts(1, frozenset({"seal"}))
    for name in ("load-0a0b.sst", "work-0a0b.dropped"):
        (window.parent / name).touch()
        assert delay_files.counts(tmp_path) == delay_files.DelayFileCounts(1, frozenset({"seal", "load"}))
        (window.parent / name).unlink()


def test_a_span_begins_and_ends_with_its_work(tmp_path: Path) -> None:
    far = tmp_path / "shards" / "000" / "far"
    far.mkdir(parents=True)
    steps = iter((lambda: (far / "load-1.dropped").touch(), lambda: (far / "load-1.dropped").unlink()))
    span = delay_files.watch(tmp_path, "load", 60, lambda: next(steps)())
    assert span is not None and 0 < span.seconds < 60
    assert delay_files.watch(tmp_path, "seal", 0.05, lambda: None) is None


def tally_of(*late_at: tuple[float, float], lost: int = 0) -> Tally:
    late, at = (np.array(column) for column in zip(*late_at, strict=True))
    return Tally(len(late) + lost, len(late), lost, 0, 0, 0, 0, late, at)


def test_deliveries_belong_to_the_span_they_were_due_in() -> None:
    both = joined(tally_of((5, 1005), (50, 1050)), tally_of((500, 2499), (1, 3001), lost=2))
    assert (both.accepted, both.received, both.lost) == (6, 4, 2)
    spans = [Span(1000, 1999), Span(3001, 4000)]
    assert during(both, spans).tolist() == [True, True, True, False]  # the last one was due before, the third came late
    assert during(both, []).tolist() == [False] * 4
    assert ratio(np.array([10.0, 40.0]), np.array([20.0])) == 2
    assert np.isnan(ratio(np.array([10.0]), np.zeros(0)))


def test_samples_do_not_overlap_and_shrink_together() -> None:
    ids = [f"id-{number}" for number in range(100)]
    chosen = sample([*ids, ""], singles=10, bulk=50, seed=1)
    kinds = (chosen.looked_up, chosen.cancelled, chosen.in_bulk)
    assert list(map(len, kinds)) == [10, 10, 50]
    assert len({each for kind in kinds for each in kind}) == 70
    assert {each for kind in kinds for each in kind} < set(ids)
    assert [len(kind) for kind in vars_of(sample(ids, singles=100, bulk=200, seed=1))] == [25, 25, 50]


def vars_of(chosen: object) -> list[list[str]]:
    return [getattr(chosen, name) for name in ("looked_up", "cancelled", "in_bulk")]


def test_look_ups_tell_what_is_not_there_as_scheduled() -> None:
    async def one(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response({"status": name.removeprefix("no-")}, status=404 if name.startswith("no-") else 200)

    async def play() -> None:
        runner, url = await serve("/v1/messages/{name}", "GET", one)
        try:
            found = await get_singly(Unpiped(), url, ["scheduled", "cancelled", "no-scheduled", "scheduled"])
        finally:
            await runner.cleanup()
        assert found.scheduled.tolist() == [True, False, False, True]
        assert (found.wait_ms > 0).all()

    asyncio.run(play())


@pytest.mark.parametrize("until_decided", [True, False])
def test_bulk_cancels_are_asked_about_again_until_they_are_decided(until_decided: bool) -> None:
    asked: list[list[str]] = []

    async def some(request: web.Request) -> web.Response:
        ids = json.loads(await request.read())["ids"]
        asked.append(ids)
        if ids[0] == "c":
            return web.Response(status=503)
        states = {"a": "cancelled", "b": "pending" if len(asked) < 3 else "already_delivered"}
        return web.json_response({"results": [{"status": states[each]} for each in ids]})

    async def play() -> None:
        runner, url = await serve("/v1/messages:cancel", "POST", some)
        try:
            said = await cancel_many(Unpiped(), url, ["a", "b", "c"], 2, 1, until_decided)
        finally:
            await runner.cleanup()
        last = DELIVERED if until_decided else PENDING
        assert said.word.tolist() == [CANCELLED, last, REFUSED]
        assert asked == [["a", "b"], *[["b"]] * (2 * until_decided), ["c"]]
        assert said.pending == 1
        assert said.refusal is not None and "503" in said.refusal
        assert (said.wait_ms > 0).all() and said.wait_ms[0] == said.wait_ms[1]

    asyncio.run(play())


def test_the_wheel_is_weighed_and_right() -> None:
    screen = ProgressScreen(Console(file=io.StringIO()))
    figures = {each.key: each.value for each in wheel(screen, count=180_000, tick_ms=1000).figures}
    assert figures["wrong"] == 0
    # Two windows of minutes, and blocks of 8,000 bytes of the seconds that are near: less could not be the whole wheel.
    assert 8 < figures["held_kib"] < 1024
    assert figures["beside_kib"] > 0
    assert figures["add_ns"] > 0 and figures["expand_ns"] > 0 and figures["take_ns"] > 0
