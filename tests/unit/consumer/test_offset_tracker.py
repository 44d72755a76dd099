"""The book of a partition, against a plain list; and the file of offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from duemq.client.consumer.kafka.offsets import FileOffsets
from duemq.client.consumer.work.offset_tracker import Book
from duemq.model.errors import CorruptStore, StoreFailed


@given(st.data())
def test_the_commit_is_the_first_offset_that_is_not_done(data: st.DataObject) -> None:
    book, pulled, done = Book(10), list[int](), set[int]()
    position = 10
    for _ in range(data.draw(st.integers(0, 30))):
        in_hand = [each for each in pulled if each not in done]
        end: bool = data.draw(st.booleans())
        if in_hand and end:
            offset = data.draw(st.sampled_from(in_hand))
            book.done(offset)
            done.add(offset)
        else:
            # Offsets have gaps: markers of transactions, and records that a filter skips.
            gaps: list[int] = data.draw(st.lists(st.integers(1, 3), max_size=4))
            offsets: list[int] = []
            for gap in gaps:
                position += gap
                offsets.append(position - 1)
            position += data.draw(st.integers(0, 2))
            book.pulled(offsets, position)
            pulled += offsets
        left = [each for each in pulled if each not in done]
        assert book.commit == (left[0] if left else position)
        assert (len(book), book.pull) == (len(left), position)


A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def test_offsets_are_kept_in_a_file(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    assert offsets.load() == {}
    offsets.save({A: 5, B: 6})
    offsets.save({A: 7})
    assert FileOffsets(tmp_path, "billing", "host-1").load() == {A: 7, B: 6}
    assert FileOffsets(tmp_path, "billing", "host-2").load() == {}


def test_a_crash_leaves_the_offsets_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    offsets.save({A: 5})

    def fail(*_: object) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreFailed):
        offsets.save({A: 6})
    assert FileOffsets(tmp_path, "billing", "host-1").load() == {A: 5}


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "offsets": {}}', '{"format": 1, "offsets": {"a": 5}}', "[]"])
def test_a_file_that_is_none_of_ours_is_refused(text: str, tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    offsets.path.parent.mkdir()
    offsets.path.write_text(text)
    with pytest.raises(CorruptStore, match=r"host-1\.json"):
        offsets.load()
