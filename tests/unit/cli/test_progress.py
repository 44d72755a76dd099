"""Progress: lines off a terminal, a bar on one, nothing with `--json`."""

from __future__ import annotations

import pytest

from duemq.cli import progress as module
from duemq.cli.progress import progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_lines_come_after_a_second_and_then_ever_more_seldom(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    at = []
    with progress(False) as tell:
        for second in range(600):
            clock.now = float(second)
            tell("messages imported", second * 1000, 600_000)
            if said := capsys.readouterr().err:
                at.append(second)
                assert said == f"messages imported: {second * 1000:,} of 600,000 ({second // 6} %)\n"
    assert at[:6] == [1, 3, 7, 15, 31, 63] and at[7] - at[6] == 60 == at[-1] - at[-2]


def test_amounts_are_sizes_or_have_no_total(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    clock.now = 0.0
    with progress(False, in_bytes=True) as tell:
        clock.now = 1.0
        tell("backed up", 3 << 20, 4 << 20)
    assert capsys.readouterr().err == "backed up: 3.0 MiB of 4.0 MiB (75 %)\n"
    with progress(False) as tell:
        clock.now = 2.0
        tell("cancel ab3kd7m2q9xz", 7, None)
        clock.now = 10.0
        tell("cancel ab3kd7m2q9xz", 0, 0)
    assert capsys.readouterr().err == "cancel ab3kd7m2q9xz: 7\ncancel ab3kd7m2q9xz: 0 of 0\n"


def test_json_has_no_progress(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress(True) as tell:
        clock.now = 100.0
        tell("backed up", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress(False) as tell:
        tell("files submitted", 1, 2)
        tell("files submitted", 2, 2)
    assert "files submitted" in capsys.readouterr().err
