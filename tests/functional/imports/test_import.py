"""Importing files: what is refused and why, what a crash leaves, and replicas that cannot get a file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.metrics import TieringCounts
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import Behind, CorruptStore, StoreFailed
from duemq.model.log.ledger import FileDecision
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.model.timing import WINDOW_MS
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.jobs import ImportJob
from duemq.storage.jobs.parent import Unresponsive, lines_of
from duemq.storage.shard.records import IMPORTED, PENDING, REJECTED, LocalFile
from tests.functional.imports.import_site import DRAFTS, WINDOW, Others, hand_over, master_and_standby, outcome, pending
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import SHARD, Killed, SimNode, World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with master_and_standby(tmp_path) as made:
        yield made


async def test_a_file_is_wanted_then_imported(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world)
    assert outcome(node) == (PENDING, "")
    assert (pending(node), node.replica.entry.pending) == (0, 0)
    assert await node.importer.step()
    await world.tick(node)
    assert outcome(node) == (IMPORTED, "")
    assert (pending(node), node.replica.entry.pending, node.replica.entry.outcomes.accepted) == (10, 10, 10)
    world.check(node)


async def test_the_same_content_is_imported_once(world: World) -> None:
    node = world.nodes[0]
    handed = await hand_over(world)
    await world.produce([handed])  # while it is wanted
    await node.importer.step()
    await world.tick(node)
    copy = replace(handed.import_command, path=f"{handed.import_command.path}.copy")
    await world.produce([Handed(copy, DRAFTS)])  # and when it is imported
    await world.tick(node)
    assert not await node.importer.step()
    await world.tick(node)
    assert node.replica.entry.outcomes.accepted == 10


async def test_a_process_takes_files_in(world: World) -> None:
    node = world.nodes[0]
    importer = FileImporter(
        SHARD, node.replica, ImportPolicy((world.shared,)), lambda: world.now, asyncio.Lock(),
        lines_of("duemq.storage.imports.import_process"),
    )  # fmt: skip
    await hand_over(world)
    assert await importer.step()
    (said,) = importer.decide(world.now)
    assert (said.offset, said.rows, said.reason) == (0, 10, "")
    assert importer.local_file(0).path.exists()


async def test_a_wrong_row_is_named_and_the_file_refused_as_a_whole(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world, [*DRAFTS, Draft("one", b"", WINDOW)], bad=True)
    await node.importer.step()
    await world.tick(node)
    state, reason = outcome(node)
    assert state == REJECTED and "row 10, column due_ms" in reason
    assert pending(node) == 0
    assert not list((node.path / "far").rglob("*.parquet"))
    await hand_over(world)  # mended
    await node.importer.step()
    await world.tick(node)
    assert outcome(node, 1) == (IMPORTED, "")


@pytest.mark.parametrize("said", [{"rows": 11}, {"sha256": "0" * 64}, {"size": 5}, {"window": WINDOW + WINDOW_MS}])
async def test_another_file_than_the_command_says_is_refused(world: World, said: dict[str, Any]) -> None:
    node = world.nodes[0]
    await hand_over(world, bad=True, said=said)
    await node.importer.step()
    await world.tick(node)
    assert outcome(node)[0] == REJECTED
    assert not list((node.path / "far").rglob("*.parquet"))


async def test_a_file_from_another_folder_is_not_even_looked_at(world: World, tmp_path: Path) -> None:
    node = world.nodes[0]
    import_command = write_messages(tmp_path / "elsewhere.parquet", DRAFTS)
    inside = world.shared / "link.parquet"
    world.shared.mkdir()
    inside.symlink_to(tmp_path / "elsewhere.parquet")
    await world.produce([Handed(replace(import_command, path=str(inside)), DRAFTS, bad=True)])
    await world.tick(node)
    await node.importer.step()
    await world.tick(node)
    state, reason = outcome(node)
    assert state == REJECTED and "delay_files.import_from" in reason


async def test_a_window_that_begins_too_soon_is_refused(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world)
    await node.importer.step()
    world.now = WINDOW - 119_999
    await world.tick(node)
    state, reason = outcome(node)
    assert state == REJECTED and "one by one" in reason
    assert not list((node.path / "far").rglob("*.parquet"))


async def test_a_file_that_is_not_there_yet_is_waited_for(world: World) -> None:
    node = world.nodes[0]
    path = world.shared / "orders.parquet"
    import_command = write_messages(path, DRAFTS)
    content = path.read_bytes()
    path.unlink()
    await world.produce([Handed(import_command, DRAFTS, gone=True)])
    await world.tick(node)
    await node.importer.step()
    world.now += 60_000
    await world.tick(node)
    assert outcome(node)[0] == PENDING
    path.write_bytes(content)
    assert await node.importer.step()
    await world.tick(node)
    assert outcome(node)[0] == IMPORTED


async def test_a_file_that_never_comes_is_refused_in_the_end(world: World) -> None:
    node = world.nodes[0]
    import_command = write_messages(world.shared / "orders.parquet", DRAFTS)
    (world.shared / "orders.parquet").unlink()
    await world.produce([Handed(import_command, DRAFTS, gone=True)])
    await world.tick(node)
    await node.importer.step()
    world.now += 60_001
    await world.tick(node)
    state, reason = outcome(node)
    assert state == REJECTED and "No such file" in reason


async def test_an_imported_file_survives_a_crash_though_its_source_is_gone(world: World) -> None:
    node = world.nodes[0]
    node.store.flush()
    handed = await hand_over(world)
    await node.importer.step()
    await world.tick(node)
    os.unlink(handed.import_command.path)
    node.kill()  # nothing of all this was flushed
    assert node.store.imports.get(0) is None
    await node.promote()
    assert outcome(node) == (IMPORTED, "")
    world.check(node)


async def test_what_a_crash_left_is_taken_in_again_where_it_is_damaged(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world)
    await node.importer.step()
    (kept,) = (node.path / "far").rglob("*.parquet")
    node.store.flush()
    name = kept.relative_to(node.path)
    kept.write_bytes(kept.read_bytes()[:-3])
    node.kill()
    await node.promote()
    assert (node.path / name).exists()
    await node.importer.step()
    await world.tick(node)
    assert outcome(node) == (IMPORTED, "")
    world.check(node)


async def test_what_was_taken_in_for_nothing_is_removed(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world)
    await node.importer.step()
    (kept,) = (node.path / "far").rglob("*.parquet")
    stray = kept.with_name("a000000000099.parquet")
    stray.write_bytes(kept.read_bytes())
    dead = kept.with_name("a000000000000.new")
    dead.touch()
    node.store.flush()
    node.kill()
    names = {path.name for path in (node.path / "far").rglob("*.*")}
    # An import command may still come at offset 99; the one at 0 is wanted.
    assert names == {"a000000000000.parquet", "a000000000099.parquet"}
    await world.nodes[1].promote()
    await world.produce([Draft("one", b"", WINDOW) for _ in range(100)])
    while world.oracle.applied < len(world.oracle.commands):
        await world.tick(world.nodes[1])
    await node.follow()
    node.store.flush()
    node.kill()
    assert {path.name for path in (node.path / "far").rglob("*.*")} == {"a000000000000.parquet"}


async def test_a_window_that_is_too_far_ahead_is_refused(world: World) -> None:
    node = world.nodes[0]
    import_command = write_messages(world.shared / "orders.parquet", [Draft("one", b"", WINDOW + 4_000 * 86_400_000)])
    await world.produce_unseen([Handed(import_command, [])])
    assert node.master is not None
    for _ in range(2):
        await node.master.tick()
    state, reason = outcome(node)
    assert state == REJECTED and "limits.max_delay" in reason


async def test_what_was_refused_while_it_was_taken_in_is_removed(world: World) -> None:
    node = world.nodes[0]
    await hand_over(world)
    take_in = node.importer.work

    async def slow(job: ImportJob) -> AsyncGenerator[bytes, None]:
        world.now = WINDOW
        await world.tick(node)
        async for line in take_in(job):
            yield line

    node.importer.work = slow
    assert await node.importer.step()
    assert outcome(node)[0] == REJECTED
    assert not list((node.path / "far").rglob("*.parquet"))


async def test_a_process_that_dies_of_one_file_does_not_keep_the_others_from_being_taken_in(world: World) -> None:
    node = world.nodes[0]
    take_in, deadly = node.importer.work, str(world.shared / "0.parquet")

    async def dying(job: ImportJob) -> AsyncGenerator[bytes, None]:
        if any(file.source == deadly for file in job.files):
            raise StoreFailed("it ended with exit code -11")
        async for line in take_in(job):
            yield line

    node.importer.work = dying
    for number in range(3):
        drafts = [Draft("one", b"%d" % number, WINDOW)]
        import_command = write_messages(world.shared / f"{number}.parquet", drafts)
        await world.produce([Handed(import_command, drafts, gone=number == 0)])
    await world.tick(node)
    with pytest.raises(StoreFailed):
        await node.importer.step()
    assert await node.importer.step()
    await world.tick(node)
    assert [outcome(node, offset)[0] for offset in range(3)] == [PENDING, IMPORTED, IMPORTED]
    world.now += 60_001
    await world.tick(node)
    assert outcome(node) == (REJECTED, "it ended with exit code -11")
    world.check(node)


@pytest.mark.parametrize("step", ["written", "synced", "named"])
async def test_a_crash_while_a_file_is_taken_in(world: World, step: str) -> None:
    node = world.nodes[0]
    await hand_over(world)
    node.store.flush()
    node.import_fault = step
    with pytest.raises(Killed):
        await node.importer.step()
    node.kill()
    await node.promote()
    await node.importer.step()
    await world.tick(node)
    assert outcome(node) == (IMPORTED, "")
    world.check(node)


async def test_a_follower_compares_the_file_with_the_ledger(world: World) -> None:
    master, standby = world.nodes
    await hand_over(world)
    await master.importer.step()
    await world.tick(master)
    await standby.follow(ledger_end=1)
    await standby.importer.step()
    here = standby.importer.local_file(0)
    standby.importer.outcomes[0] = LocalFile(here.about, here.checksum + 1, here.path)
    with pytest.raises(CorruptStore, match="checksum"):
        await standby.follow()


async def test_a_follower_without_the_file_waits_and_then_asks_for_a_peers_copy(world: World) -> None:
    master, standby = world.nodes
    handed = await hand_over(world)
    await master.importer.step()
    await world.tick(master)
    os.unlink(handed.import_command.path)
    await standby.follow(ledger_end=1)
    clock = world.now
    importer = FileImporter(
        SHARD, standby.replica, ImportPolicy((world.shared,)), lambda: clock, asyncio.Lock(),
        lines_of("duemq.storage.imports.import_process"), peers=(peers := Others({"silent": {}})),
    )  # fmt: skip
    (said,) = master.replica.entry.imported
    assert not importer.seeks_file()
    waiting = asyncio.create_task(importer.have(FileDecision(0, said.rows, said.checksum)))
    await asyncio.sleep(0)
    assert importer.seeks_file(), "it was not looked at"
    await importer.step()
    assert not waiting.done()
    assert "No such file" in (importer.why_waiting() or "")
    assert importer.seeks_file(), "the others were not asked"
    await importer.ask()
    assert not importer.seeks_file(), "nobody has it"
    await importer.ask()
    assert peers.asked == 2, "what it cannot follow without is asked for at each look: a node may have come"
    clock += 60_001
    await importer.step()
    with pytest.raises(Behind, match="No such file"):
        await waiting


@pytest.mark.parametrize("work", ["loaded", "rewritten"])
async def test_a_file_that_is_imported_while_its_window_is_worked_on(world: World, work: str) -> None:
    """What was taken in before is loaded or rewritten again together with it; nothing of it is lost."""
    node = world.nodes[0]
    await hand_over(world)
    await node.importer.step()
    await world.tick(node)
    if work == "rewritten":
        world.delay_files = TieringPolicy(windows=1, rewrite_share=0.1, rewrite_rows=1)
        await world.produce([Change(CANCEL, make_key(WINDOW, 0, 0), 0), Change(CANCEL, make_key(WINDOW, 0, 1), 0)])
        while await world.tick(node) == 0:
            pass
    else:
        world.now = WINDOW - 600_000
    node.delay_files = node.keeper()

    async def import_more(node: SimNode) -> None:
        world.meanwhile = None
        more = [Draft("one", b"more %d" % n, WINDOW + n) for n in range(5)]
        import_command = write_messages(world.shared / "more.parquet", more)
        await world.produce([Handed(import_command, more)])
        while await world.tick(node) == 0:
            pass
        assert await node.importer.step()
        await world.tick(node)

    world.meanwhile = import_more
    assert await node.delay_files.step()
    assert world.meanwhile is None
    world.check(node)
    assert node.store.delay_files.windows()
    while await node.delay_files.step():
        world.check(node)
    world.check(node)
    assert bool(node.store.delay_files.windows()) is (work == "rewritten")
    node.store.flush()
    node.kill()
    await node.promote()
    world.check(node)


# --- bad files ------------------------------------------------------------------------------------------------------


async def test_a_pipe_a_device_and_a_circle_of_links_are_refused_at_once(world: World) -> None:
    node = world.nodes[0]
    world.shared.mkdir()
    os.mkfifo(world.shared / "pipe")
    (world.shared / "loop").symlink_to(world.shared / "loop")
    sample = write_messages(world.shared / "sample.parquet", DRAFTS)
    for name in ("pipe", "loop"):
        path = str(world.shared / name)
        await world.produce(
            [Handed(replace(sample, path=path, sha256=name.encode().hex().ljust(64, "0")), [], gone=True)]
        )
    await world.tick(node)
    assert await node.importer.step()
    assert "not a regular file" in node.importer.why_pending(0)
    assert "symbolic links" in node.importer.why_pending(1)


async def test_long_names_make_no_long_reasons(world: World) -> None:
    """Nor do they end anything: a column whose name has a megabyte once ended the process of each node."""
    node = world.nodes[0]
    importer = FileImporter(
        SHARD, node.replica, ImportPolicy((world.shared,)), lambda: world.now, asyncio.Lock(),
        lines_of("duemq.storage.imports.import_process"),
    )  # fmt: skip
    path = world.shared / "wide.parquet"
    import_command = write_messages(path, DRAFTS)
    table = pq.read_table(path).append_column("x" * 1_200_000, pa.array([1] * len(DRAFTS)))
    pq.write_table(table, path)
    raw = path.read_bytes()
    import_command = replace(import_command, sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))
    await world.produce_unseen([Handed(import_command, DRAFTS)])
    assert node.master is not None
    await node.master.tick()
    assert await importer.step()
    (said,) = importer.decide(world.now)
    assert said.reason.startswith("column xxx") and len(said.reason) <= 300


async def test_an_unforeseen_error_is_counted_and_shown_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, counts = world.nodes[0], TieringCounts()
    pauses: list[float] = []

    async def wrong(job: ImportJob) -> AsyncGenerator[bytes, None]:
        raise ZeroDivisionError("nobody thought of it")
        yield b""

    class Ended(BaseException):
        pass

    async def pause(seconds: float, end: asyncio.Event) -> None:
        if not seconds:  # before the first turn
            return
        assert "nobody thought of it" in (importer.trouble or "")
        pauses.append(seconds)
        world.now += int(seconds * 1_000)
        if sum(pauses) == 5 + 10 + 20:
            raise Ended

    importer = FileImporter(
        SHARD, node.replica, ImportPolicy((world.shared,)), lambda: world.now, asyncio.Lock(), wrong,
        counts=counts,
    )  # fmt: skip
    await hand_over(world)
    monkeypatch.setattr("duemq.background.loop._pause", pause)
    with pytest.raises(Ended):
        await importer.run()
    assert counts.failures == 3
    assert "nobody thought of it" in importer.why_pending(0)


async def test_a_mount_that_hangs_holds_up_nothing_beside_it(world: World) -> None:
    node = world.nodes[0]
    take_in = node.importer.work

    async def hanging(job: ImportJob) -> AsyncGenerator[bytes, None]:
        if any("/hangs/" in file.source for file in job.files):
            raise Unresponsive("nothing could be read for 60 s")
        async for line in take_in(job):
            yield line

    node.importer.work = hanging
    for number, folder in enumerate(("hangs", "hangs", "sound")):
        drafts = [Draft("one", b"%d" % number, WINDOW)]
        import_command = write_messages(world.shared / folder / f"{number}.parquet", drafts)
        await world.produce([Handed(import_command, drafts, gone=folder == "hangs")])
    await world.tick(node)
    with pytest.raises(Unresponsive):
        await node.importer.step()
    assert await node.importer.step()
    await world.tick(node)
    assert [outcome(node, offset)[0] for offset in range(3)] == [PENDING, PENDING, IMPORTED]
    assert not await node.importer.step()
