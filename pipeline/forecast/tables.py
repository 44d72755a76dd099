"""Presents a forecast as sentences and tables, for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from duemq.pipeline.forecast.job import Forecast


class ForecastTable(NamedTuple):
    """A head that ends in `|n` marks a column of numbers. `total`: the number of all rows; `rows` may have only the
    first ones."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str | int, ...]]
    total: int


def moment(ms: int) -> str:
    """A date and time of day, in UTC."""
    return f"{datetime.fromtimestamp(ms // 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def at(ms: int) -> str:
    """A `moment` with its zone."""
    return f"{moment(ms)} UTC"


def duration(ms: int) -> str:
    """A length of time as text, in at most two units."""
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s" if ms else "0"
    minutes, seconds = divmod(ms // 1_000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def sentences(done: Forecast) -> Iterator[str]:
    """The summary of a forecast: the result, then its basis."""
    capacity = f"{done.capacity.per_second:,.0f} messages/s ({done.capacity.source})"
    if not done.counted:
        yield f"Nothing is due until {at(done.until_ms)}."
    elif done.late_minutes:
        some = "1 minute is" if done.late_minutes == 1 else f"{done.late_minutes:,} minutes are"
        yield (
            f"{some} over capacity or late by a second or more, from {at(done.late[0].minute_ms)} on; "
            f"the latest message by {duration(done.most_late_ms)}. Capacity: {capacity}."
        )
    else:
        yield f"All of it can be delivered on time. Capacity: {capacity}."
    beyond = f", {done.beyond:,} later" if done.beyond else ""
    overdue = f", {done.overdue:,} of them overdue" if done.overdue else ""
    yield (
        f"{done.pending:,} messages pending: {done.counted:,} due from {at(done.from_ms)} until {at(done.until_ms)}"
        f"{overdue}{beyond}."
    )
    if done.as_of_ms:
        yield f"Read from {done.folder}, which is as of {at(done.as_of_ms)}."
    else:
        yield f"Read from {done.folder}, which has never held a message."


def tables(done: Forecast, named: int) -> Iterator[ForecastTable]:
    """The tables that have rows. `named`: how many topics are listed for a hot second, largest first."""
    topics: list[tuple[str | int, ...]] = [
        (one.topic, one.messages, one.peak, moment(one.peak_ms)) for one in done.topics
    ]
    hot: list[tuple[str | int, ...]] = []
    for one in done.hot:
        largest = ", ".join(f"{topic} {messages:,}" for topic, messages in one.topics[:named])
        more = f" and {len(one.topics) - named} more" if len(one.topics) > named else ""
        hot.append((moment(one.second_ms), one.messages, duration(one.late_ms), largest + more))
    late: list[tuple[str | int, ...]] = [
        (
            moment(one.minute_ms)[:-3], one.messages, one.peak, one.waiting, duration(one.late_ms),
            "over capacity" if one.over else "",
        )
        for one in done.late
    ]  # fmt: skip
    for table in (
        ForecastTable("Topics", ("topic", "messages|n", "fullest second|n", "at (UTC)"), topics, len(topics)),
        ForecastTable("Hot seconds (UTC)", ("second", "messages|n", "last one late by|n", "topics"), hot, len(hot)),
        ForecastTable(
            "Minutes over capacity or late (UTC)",
            ("minute", "messages|n", "fullest second|n", "waiting|n", "late by|n", ""), late, done.late_minutes,
        ),
    ):  # fmt: skip
        if table.rows:
            yield table
