"""Ids of messages that were accepted after a backup and lost: no message of the restored log gets one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from duemq.bus.embedded import layout
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.embedded.layout import UNUSED
from duemq.model.errors import FolderRefused
from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import RESTORED, peek
from duemq.model.messages.message import CANCEL, Draft
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.backup.restore import restore
from tests.support.node.backup_world import back_up, nothing, now, running, wrong

MIDNIGHT = (now() // 86_400_000 + 30) * 86_400_000


async def send(gateway: CommandGateway, names: list[str]) -> dict[str, str]:
    receipts = await gateway.send([Draft("reminders", name.encode(), MIDNIGHT) for name in names])
    return {name: receipt.id for name, receipt in zip(names, receipts, strict=True) if isinstance(receipt, Receipt)}


def test_an_id_that_was_lost_is_never_issued_again(tmp_path: Path) -> None:
    data, into = tmp_path / "data", tmp_path / "into"

    def session(names: list[str], lost: dict[str, str], kept: dict[str, str]) -> dict[str, str]:
        """Send these, and ask for all messages from before."""

        async def run() -> dict[str, str]:
            async with running(data) as (_, gateway):
                sent = await send(gateway, names)
                for id_ in lost.values():
                    assert await gateway.state(id_) is None
                    (outcome,) = await gateway.change(CANCEL, [id_])
                    assert outcome.answer is Answer.UNKNOWN
                for id_ in (*sent.values(), *kept.values()):
                    state = await gateway.state(id_)
                    assert state is not None and state.status == "scheduled"
                return sent

        return asyncio.run(run())

    def restored(backup: Path) -> None:
        shutil.rmtree(data)
        restore(backup, data, nothing)
        assert (data / "bus" / RESTORED).exists()

    kept = session(["early"], {}, {})
    backup = back_up(data, into).path
    lost = session(["ann", "bob", "cid", "dee"], {}, kept)
    restored(backup)
    again = session(["bob", "cid", "dee"], lost, kept)  # ann has left
    assert not (data / "bus" / RESTORED).exists()
    assert peek(again["bob"]).offset >= UNUSED
    backup = back_up(data, into, now()).path  # its log has a gap
    kept |= again
    lost |= {f"later {name}": id_ for name, id_ in session(["eve", "fay"], lost, kept).items()}
    restored(backup)
    last = session(["fay", "eve"], lost, kept)
    assert not {*last.values()} & {*lost.values(), *kept.values()}
    assert wrong(data) == []


def frames(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_log_with_gaps_is_read_trimmed_and_opened_as_one_without(tmp_path: Path) -> None:
    asyncio.run(_gaps(tmp_path))


async def _gaps(tmp_path: Path) -> None:
    folder, where, clock = tmp_path / "bus", ("buffer", 0), [1_000]

    async def reopened() -> EmbeddedBus:
        bus = await EmbeddedBus.open(folder, clock=lambda: clock[0])
        await bus.create_log("buffer", 1, in_ids=True)
        return bus

    bus = await reopened()
    await bus.append({where: frames(range(4))})
    gaps = 0
    for first in (4, 8, 8, 12):  # two restores meet without a record between them
        await bus.close()
        (folder / RESTORED).touch()
        bus, gaps = await reopened(), gaps + 1
        assert await bus.read(*where, first + (gaps - 1) * UNUSED, 10) == []
        assert bus.reach(*where) == await bus.end_offset(*where) == first + gaps * UNUSED
        await bus.close()
        bus = await reopened()  # a gap is there once for each restore, also before the next record
        assert bus.reach(*where) == first + gaps * UNUSED
        clock[0] += 1_000
        if gaps != 2:
            results = await bus.append({where: frames(range(first, first + 4))})
            assert results[where].first_offset == first + gaps * UNUSED
    for _ in range(2):
        records = await bus.read(*where, 0, 100)
        assert [record.frame for record in records] == frames(range(16))
        offsets = [record.offset for record in records]
        assert offsets == [0, 1, 2, 3] + [n + (n // 4 + (n >= 8)) * UNUSED for n in range(4, 16)]
        for at in range(16):
            assert await bus.read(*where, offsets[at], 1) == [records[at]]
            assert await bus.read(*where, offsets[at] + 1, 100) == records[at + 1 :]
        for since in range(0, 7_000, 500):
            first_at = next((record.offset for record in records if record.timestamp >= since), bus.reach(*where))
            assert await bus.first_since(*where, since) == first_at
        await bus.close()
        bus = await reopened()  # out of the database now
    for before in (2, 4, 4 + UNUSED // 2, 6 + UNUSED, 12 + 3 * UNUSED):
        await bus.trim(*where, before)
        assert await bus.start_offset(*where) == before
        assert [one.offset for one in await bus.read(*where, 0, 100)] == [one for one in offsets if one >= before]
        await bus.close()
        bus = await reopened()
        assert [one.offset for one in await bus.read(*where, 0, 100)] == [one for one in offsets if one >= before]
    await bus.close()


def test_a_log_whose_offsets_are_used_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "UNUSED", 1 << 46)
    asyncio.run(_used_up(tmp_path))


async def _used_up(tmp_path: Path) -> None:
    for restores in range(1, 5):
        (tmp_path / "bus").mkdir(exist_ok=True)
        (tmp_path / "bus" / RESTORED).touch()
        bus = await EmbeddedBus.open(tmp_path / "bus")
        if restores <= 3:
            await bus.create_log("buffer", 1, in_ids=True)
        else:
            with pytest.raises(FolderRefused, match="was restored 3 times"):
                await bus.create_log("buffer", 1, in_ids=True)
        await bus.close()
