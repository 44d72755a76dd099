"""How full a disk may be, and what a node says of it."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from duemq.delay.core.disk_watermarks import NEVER, Watermark, Watermarks
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.election.zookeeper.layout import decode_member, encode_member
from duemq.election.zookeeper.session import Znode
from duemq.model.disk_use import DiskUse
from duemq.model.errors import StoreFailed
from duemq.storage.data_folder import disk_use

MIB = 1 << 20


def percent(used: float, whole: int = 100_000 * MIB) -> DiskUse:
    taken = round(whole * used / 100)
    return DiskUse(taken, whole - taken)


def test_a_mark_is_reached_at_its_percentage_and_left_one_percent_below() -> None:
    marks, level = Watermarks(), Watermark.FREE
    seen = []
    for used in (74.9, 75, 74.5, 74, 73.9, 84.9, 85, 84, 83.9, 95, 89.1, 88.9, 83.9, 90, 10):
        level = marks.level(percent(used), level)
        seen.append(int(level))
    assert seen == [0, 1, 1, 1, 0, 1, 2, 2, 1, 3, 3, 2, 1, 3, 0]


def test_a_disk_with_less_than_the_reserve_is_full_at_any_percentage() -> None:
    marks = Watermarks(min_free_bytes=256 * MIB)
    assert marks.level(DiskUse(0, 255 * MIB), Watermark.FREE) is Watermark.REFUSE
    assert marks.level(DiskUse(0, 256 * MIB), Watermark.REFUSE) is Watermark.FREE
    assert NEVER.level(DiskUse(100, 0), Watermark.FREE) is Watermark.FREE


def test_refused_senders_are_told_the_figure_the_mark_and_the_folder() -> None:
    marks = Watermarks(refuse=90)
    assert marks.why_full("/data", percent(91.26)) == (
        "the disk of /data is 91.3 % full: at 90 % (storage.refuse_percent) new messages are refused, "
        "until it is below 89 %"
    )
    least = marks.why_full("/data", DiskUse(0, 10 * MIB))
    assert least == "the disk of /data has 10 MiB free, new messages need 256 MiB (storage.min_free_bytes)"


def test_a_disk_is_measured_as_df_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.statvfs_result((4096, 4096, 1000, 300, 200, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: stat)
    assert disk_use(tmp_path) == DiskUse(700 * 4096, 200 * 4096)
    assert disk_use(tmp_path).percent == pytest.approx(100 * 7 / 9)
    monkeypatch.undo()
    assert disk_use(tmp_path).free > 0
    with pytest.raises(StoreFailed):
        disk_use(tmp_path / "gone")


def test_others_hear_of_a_full_disk_and_know_nodes_that_say_nothing_of_it() -> None:
    me = Member("a", "http://a", health=NodeHealth(NodeState.READY, "", {0: 1}, 3, "it is full"))
    data = encode_member(me, "i")
    found = decode_member("a", Znode(data, 1, 1, 1))
    assert found is not None and found.member == me
    fields = orjson.loads(data)
    del fields["watermark"], fields["full"]
    known = decode_member("a", Znode(orjson.dumps(fields), 1, 1, 1))
    assert known is not None and known.member.health == NodeHealth(NodeState.READY, "", {0: 1})
