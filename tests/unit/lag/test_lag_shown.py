"""Lag as a table, as JSON, and for Prometheus."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from duemq.cli.operate.lag_table import age_text, echo_lag
from duemq.client.lag import GroupLag, GroupState, LagReader, Matches, PartitionLag
from duemq.client.lag.document import document
from duemq.client.lag.metrics import LagMetrics, keep_reading
from duemq.client.lag.values import by_topic
from duemq.model.errors import BadConfig, DuemqError, Rejected, Unavailable

ORDERS = PartitionLag(
    "orders", 0, GroupState.OK, 0, 2500, 500, 900, 2000, 400, 1600, 7_260_000, 7_260_000, 61_000,
    matching=Matches(1200, False),
)  # fmt: skip
NEW = PartitionLag("orders", 1, GroupState.NO_COMMIT, 0, 7)
RETRIES = PartitionLag("retry.billing", 0, GroupState.REMOVED, 4, 9, 2, None, 5, lag_ms=340, lost=2)
MAIL = PartitionLag("mail", 0, GroupState.OK, 0, 3, 3, 3, 0, 0, 0, 0, 0, 0)
GROUPS = [
    GroupLag("billing", "Stable", 2, by_topic("billing", [ORDERS, NEW, RETRIES, MAIL])),
    GroupLag("old", "Empty", 0, ()),
]


def test_a_row_for_each_topic(capsys: pytest.CaptureFixture[str]) -> None:
    echo_lag(GROUPS, by_partition=False, tags=None)
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["billing", "2", "mail", "0", "-", "0", "-", "0", "-", ""],
        ["billing", "2", "orders", "2000", "2h", "400", "2h", "1600", "1m", "no commit: 1 of 2"],
        [
            "billing", "2", "retry.billing", "5", "340ms", "unknown", "-", "unknown", "-",
            "retries, 2 lost",
        ],
        ["billing", "2", "all", "2000", "2h", "400", "2h", "1600", "1m", "without retries"],
        ["old", "offline", "-", "-", "-", "-", "-", "-", "-", "no topics"],
    ]  # fmt: skip


def test_a_row_for_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    echo_lag(GROUPS[:1], by_partition=True, tags="paid")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[2:4] for row in rows] == [
        ["mail", "0"], ["orders", "0"], ["orders", "1"], ["retry.billing", "0"], ["all", "all"],
    ]  # fmt: skip
    assert rows[1][-2:] == ["1200+", ""]
    assert rows[2][4:] == ["-", "-", "-", "-", "-", "-", "-", "no commit"]


def test_in_a_terminal_an_age_stands_beside_its_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    echo_lag(GROUPS, by_partition=False, tags=None)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert lines[0].split() == ["GROUP", "MEMBERS", "TOPIC", "LAG", "IN", "HAND", "AVAILABLE", "NOTE"]
    assert "2,000 (2h)  400 (2h)  1,600 (1m)  no commit: 1 of 2" in lines[2]
    assert lines[5].split() == ["old", "offline", "-", "-", "-", "-", "no", "topics"]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"), (999, "999ms"), (1000, "1.0s"), (59_949, "59.9s"), (60_000, "1m"), (7_199_999, "119m"),
        (7_200_000, "2h"), (172_799_999, "47h"), (172_800_000, "2d"),
    ],
)  # fmt: skip
def test_ages(ms: int, text: str) -> None:
    assert age_text(ms) == text


def test_json_says_null_for_what_is_unknown() -> None:
    found = document(GROUPS, 5)
    assert (found["read_at_ms"], [one["group"] for one in found["groups"]]) == (5, ["billing", "old"])
    billing = found["groups"][0]
    assert (billing["total"]["lag"], billing["total"]["unknown"], billing["retry_total"]["inflight"]) == (2000, 1, None)
    assert billing["topics"][1]["partitions"][0]["matching"] == {"messages": 1200, "exact": False}
    assert billing["topics"][1]["partitions"][1] == {
        "partition": 1, "state": "no commit", "start": 0, "max": 7, "commit": None, "pull": None, "lag": None,
        "inflight": None, "available": None, "lag_ms": None, "inflight_ms": None, "available_ms": None, "lost": 0,
    }  # fmt: skip
    assert [topic["retry"] for topic in billing["topics"]] == [False, False, True]


class Registry:
    def __init__(self) -> None:
        self.metrics, self._registry = LagMetrics(), CollectorRegistry()
        self._registry.register(self.metrics)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def test_metrics_leave_out_what_is_unknown() -> None:
    registry = Registry()
    assert registry("duemq_lag_up") == 0
    registry.metrics.record(GROUPS, 0.5, 1234.0)
    orders = {"group": "billing", "topic": "orders", "partition": "0", "retry": "false"}
    retries = {"group": "billing", "topic": "retry.billing", "partition": "0", "retry": "true"}
    for name, value in (
        ("lag_messages", 2000), ("inflight_messages", 400), ("available_messages", 1600), ("lag_seconds", 7260),
        ("inflight_seconds", 7260), ("available_seconds", 61), ("lost_messages", 0), ("matching_messages", 1200),
        ("matching_exact", 0),
    ):  # fmt: skip
        assert registry(f"duemq_group_{name}", **orders) == value, name
        assert registry(f"duemq_group_{name}", **(orders | {"partition": "1"})) is None, name
    assert registry("duemq_group_lag_messages", **retries) == 5
    assert registry("duemq_group_inflight_messages", **retries) is None
    assert registry("duemq_group_lost_messages", **retries) == 2
    assert registry("duemq_group_members", group="billing", state="Stable") == 2
    assert registry("duemq_group_members", group="old", state="Empty") == 0
    assert registry("duemq_group_partitions", group="billing", topic="orders", state="no commit") == 1
    assert (registry("duemq_lag_up"), registry("duemq_lag_reads_total")) == (1, 1)
    assert (registry("duemq_lag_read_seconds"), registry("duemq_lag_read_timestamp_seconds")) == (0.5, 1234)


def test_after_a_failure_there_are_no_old_figures() -> None:
    registry = Registry()
    registry.metrics.record(GROUPS, 0.5, 1234.0)
    registry.metrics.record_failure()
    assert (registry("duemq_lag_up"), registry("duemq_lag_read_errors_total")) == (0, 1)
    assert "duemq_group" not in registry.text()


class Scripted(LagReader):
    """Each reading is a list of groups, or an error; then it is told to stop."""

    def __init__(self, *answers: list[GroupLag] | DuemqError) -> None:
        super().__init__("nowhere:1")
        self.answers = list(answers)
        self.stop_event = asyncio.Event()
        self.stopped = False
        self.seen: list[float | None] = []
        self.registry = Registry()

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    async def read(self, *what: Any) -> list[GroupLag]:
        self.seen.append(self.registry("duemq_lag_up"))
        if len(self.answers) == 1:
            self.stop_event.set()
        answer = self.answers.pop(0)
        if isinstance(answer, DuemqError):
            raise answer
        return answer

    def keep(self) -> None:
        asyncio.run(keep_reading(self, self.registry.metrics, self.stop_event, 0.0))


def test_reading_goes_on_after_what_may_pass() -> None:
    reader = Scripted(GROUPS, Unavailable("away"), Rejected("unknown_group", "no such group"), GROUPS, GROUPS)
    reader.keep()
    assert reader.seen == [0, 1, 0, 0, 1] and reader.stopped
    assert (reader.registry("duemq_lag_reads_total"), reader.registry("duemq_lag_read_errors_total")) == (3, 2)


@pytest.mark.parametrize("error", [BadConfig("wrong password"), Rejected("bad_tags", "no tag")])
def test_reading_ends_with_what_will_not(error: DuemqError) -> None:
    reader = Scripted(error, GROUPS)
    with pytest.raises(type(error)):
        reader.keep()
    assert reader.stopped and reader.answers == [GROUPS]
