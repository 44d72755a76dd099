"""Ledger entries by Arrow's reader of JSON: the same rows as those that are read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from duemq.model.log.ledger import Answer, Barrier, DeferredMessage, Entry, FileDecision, OutcomeCounts
from duemq.model.messages.key import HIGHEST, KEY
from duemq.pipeline.logs import decode, ledger_columns

CHECKSUM = 0x0123456789ABCDEF
LETTER = DeferredMessage(KEY.pack(1, 2, 3), None, 1, "expired")


def entry(n: int, **more: Any) -> bytes:
    plain: dict[str, Any] = {"pending": 5, "checksum": CHECKSUM, "outcomes": OutcomeCounts(n + 6, 1, 2, 3)}
    return Entry(n, 3 * n, KEY.pack(10**12 + n, n, n % 3), 10**12 + n, **(plain | more)).encode()


PLAIN = [
    entry(0), entry(1, answers={1: Answer.OK, 2: Answer.OK, 5: Answer.DEAD, 9: Answer.OK}),
    entry(2, topics=("a", "deferred"), horizon=7, end_horizon=8), entry(3, answers={4: Answer.ACCEPTED}, topics=()),
    Entry(4, 1, HIGHEST, 5).encode(),
]  # fmt: skip
OTHERS = [
    entry(5, deferred=(LETTER,)), entry(6, imported=(FileDecision(1, 2, 3),)), entry(7, lost=(1, 2)), entry(8, base=3),
    entry(9, named={4: HIGHEST}), Barrier(3, 4).encode(), None, b"no entry", b"",
]  # fmt: skip
BROKEN = {
    "cut": entry(10)[:-1], "of another format": entry(10).replace(b'"v":2', b'"v":9'),
    "of more fields": entry(10)[:-1] + b',"new":1}', "without a time": entry(10).replace(b'"at":', b'"ta":'),
    "a short cursor": entry(10).replace(KEY.pack(10**12 + 10, 10, 1).hex().encode(), b"00"),
    "an unknown answer": entry(10, answers={1: Answer.OK}).replace(b"[1,1,0]", b"[1,1,77]"),
    "half an answer": entry(10, answers={1: Answer.OK}).replace(b"[1,1,0]", b"[1,1]"),
    "two lines": entry(10).replace(b",", b",\n", 1), "spaces": entry(10).replace(b",", b", "),
    "an answer twice": entry(10, answers={1: Answer.OK}).replace(b"[1,1,0]", b"[1,1,0],[1,1,6]"),
    "three outcomes": entry(10).replace(b"[16,1,2,3]", b"[16,1,2]"),
}  # fmt: skip


def rows(values: Sequence[bytes | None]) -> list[dict[str, Any]]:
    columns = [
        pa.array([0] * len(values), pa.int32()), pa.array(range(len(values)), pa.int64()),
        pa.array([7] * len(values), pa.int64()), pa.array(values, pa.binary()),
    ]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(columns, names=["shard", "ledger_offset", "written", "value"])
    found = [row for part in decode.entries([batch]) for row in part.to_pylist()]
    return sorted(found, key=lambda row: row["ledger_offset"])


def one_by_one(values: Sequence[bytes | None], patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    with patch.context() as changed:
        changed.setattr(ledger_columns, "columns", lambda _: None)
        return rows(values)


def test_entries_are_read_at_once_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([*PLAIN, *OTHERS], pa.binary())
    assert ledger_columns.is_plain(values).to_pylist() == [True] * len(PLAIN) + [False] * len(OTHERS)
    assert ledger_columns.columns(values[: len(PLAIN)]) is not None
    for some in (PLAIN, OTHERS, [*OTHERS, *PLAIN], PLAIN[:1], []):
        assert rows(some) == one_by_one(some, monkeypatch)


@pytest.mark.parametrize("what", list(BROKEN))
def test_an_entry_that_no_server_writes_is_judged_as_before(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    values = [PLAIN[0], BROKEN[what], PLAIN[1]]
    assert rows(values) == one_by_one(values, monkeypatch)
