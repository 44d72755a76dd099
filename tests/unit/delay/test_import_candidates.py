"""What is decided of wanted files, and that it costs as much as there is to decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duemq.delay.core.cycle import Cycle
from duemq.delay.imports.import_candidates import Candidates
from duemq.model.log.ledger import START, Answer, Entry, FileDecision
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import ImportCommand, import_frame
from duemq.model.messages.record import StoredRecord
from duemq.model.timing import WINDOW_MS
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.shard.records import PENDING, ImportRecord

NOW = 1_000_000 * WINDOW_MS
POLICY = ImportPolicy(furthest_ms=100 * WINDOW_MS)


def wanted(*windows: int) -> dict[int, ImportRecord]:
    """Files of windows so many ahead."""
    return {
        offset: ImportRecord(offset, ImportCommand("/f", f"{offset:064x}", 1, NOW + ahead * WINDOW_MS, 1), PENDING, NOW)
        for offset, ahead in enumerate(windows)
    }


def candidates(*windows: int) -> Candidates:
    made = Candidates(POLICY, lambda offset: f"file {offset} waits")
    made.add_new(wanted(*windows))
    return made


def test_nothing_is_decided_of_files_that_nothing_is_known_of() -> None:
    assert candidates(5, 6).decide(NOW, NOW) == []


def test_what_is_new_is_taken_once() -> None:
    some = wanted(5, 6, 7)
    made = Candidates(POLICY, str)
    assert [one.offset for one in made.add_new({0: some[0]})] == [0]
    assert [one.offset for one in made.add_new(some)] == [1, 2]
    assert made.add_new(some) == []


def test_a_file_is_imported_refused_or_put_off_by_what_was_said_last() -> None:
    made = candidates(5)
    made.import_file(0, 10, 77)
    assert made.decide(NOW, NOW) == [FileDecision(0, 10, 77)]
    made.refuse(0, "it is gone", NOW)
    assert made.decide(NOW, NOW) == []
    assert made.decide(NOW + 1, NOW) == [FileDecision(0, 0, 0, "it is gone")]
    made.wait(0)
    assert made.decide(NOW + 1, NOW) == []
    made.drop(0)
    assert len(made) == 0


def test_windows_that_are_too_near_or_too_far_are_refused_whatever_else_is_known() -> None:
    made = candidates(5, 1, 101)
    for offset in range(3):
        made.import_file(offset, 1, 1)
    near, delay_files = made.decide(NOW, NOW + 2 * WINDOW_MS)[1:]
    assert near.reason == f"{POLICY.too_near} (file 1 waits)"
    assert delay_files.reason == POLICY.too_far


def test_an_entry_is_bounded_in_files_and_bytes() -> None:
    made = candidates(*[5] * 2_000)
    for offset in range(2_000):
        made.refuse(offset, "\N{SNOWMAN}" * 5_000, 0)
    decided = made.decide(NOW, NOW)
    assert 0 < len(Entry(1, 1, START.cursor, 1, imported=tuple(decided)).encode()) <= 48 << 10
    assert all(len(one.reason) <= 300 for one in decided)


def test_a_decision_costs_what_there_is_to_decide() -> None:
    made = candidates(*range(3, 90), *[50] * 5_000)
    made.import_file(4_000, 1, 1)

    class Few(list[tuple[int, int]]):
        """At most so many of its items are looked at in one decision."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            for count, one in enumerate(super().__iter__()):
                assert count < 3
                yield one

        def __reversed__(self):  # type: ignore[no-untyped-def]
            for count, one in enumerate(super().__reversed__()):
                assert count < 3
                yield one

    made.by_window, made.by_time = Few(made.by_window), Few(made.by_time)
    assert made.decide(NOW, NOW) == [FileDecision(4_000, 1, 1)]


class Empty:
    """A store that nothing is in."""

    def rows(self, keys: object) -> list[bytes | None]:
        return []

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        return [None] * len(sums)

    def endings(self, keys: object) -> list[EndedMessage | None]:
        return []

    current_keys = names = rows


def test_many_files_in_one_cycle_are_told_apart_without_comparing_each_with_each() -> None:
    compared = 0

    class Sum(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 300
    import_commands = [ImportCommand("/f", f"{offset % (count - 1):064x}", 1, NOW, 1) for offset in range(count)]
    cycle = Cycle(START, Empty(), IdCodec(b"s" * 32), 0, 1)
    batch = cycle.read(
        [StoredRecord(offset, 0, import_frame(import_command)) for offset, import_command in enumerate(import_commands)]
    )
    for offset, import_command in enumerate(import_commands):
        batch.others[offset] = replace(import_command, sha256=Sum(import_command.sha256))
    cycle.apply(batch)
    assert [cycle.answers[offset] for offset in (0, count - 2, count - 1)] == [
        Answer.FILE_PENDING, Answer.FILE_PENDING, Answer.FILE_DUPLICATE
    ]  # fmt: skip
    assert compared <= 10 * count
