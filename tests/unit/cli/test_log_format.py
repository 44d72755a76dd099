"""Log lines can be compared among machines."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator

import orjson
import pytest

from duemq.cli.wiring.log_format import set_up


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine is in New York, and nothing of the logs stays behind."""
    root = logging.getLogger()
    handlers, level, own = root.handlers[:], root.level, logging.getLogger("duemq").level
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("duemq").setLevel(own)


def test_what_others_sent_begins_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    set_up("info", "text")
    forged = "x\n2026-01-01T00:00:00.000Z INFO    forged\r\u2028\x1b[31m"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("duemq.it").exception("a token of %s", forged)
    lines = said.getvalue().splitlines()
    assert [line for line in lines if line[:1].isdigit()] == lines[:1]
    assert "forged" in lines[0] and "\x1b" not in said.getvalue()
    assert lines[1].startswith("Traceback") and all(line.startswith("  ") for line in lines[2:])


@pytest.mark.parametrize("form", ["text", "json"])
def test_times_are_utc_and_say_so(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    set_up("info", "json" if form == "json" else "text")
    record = logging.makeLogRecord(
        {"name": "duemq.it", "levelname": "INFO", "msg": "hello", "created": 1795354234.0496, "msecs": 49.6}
    )
    logging.getLogger().handlers[0].handle(record)
    line = said.getvalue()
    told = orjson.loads(line)["time"] if form == "json" else line.split()[0]
    assert told == "2026-11-22T13:30:34.049Z"
    if form == "text":
        assert line == "2026-11-22T13:30:34.049Z INFO    hello\n"
