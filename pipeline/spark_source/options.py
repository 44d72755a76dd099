"""Parses the options of the data source, and refuses unknown ones.

Spark converts the names of options to lower case, and adds its own options for a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from duemq.model.errors import Rejected
from duemq.model.timing import FIRST_MS, LAST_MS, WINDOW_MS, parse_duration, parse_instant
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import local_path, uri_of
from duemq.pipeline.logs.server import Server

STATUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "pending": ("scheduled",), "delivered": ("delivered",), "cancelled": ("cancelled",), "dead": ("dead",),
    "ended": ("delivered", "cancelled", "dead"),
}  # fmt: skip
"""The values of the option `what`, with the statuses that they include."""
DELIVERIES: Final = "deliveries"
MAX_RANGES: Final = 10_000  # ranges of due times, per shard
_SOME_RANGES: Final = 48  # the number of ranges by default
_SHARED: Final = ("url", "api_key", "api_key_file", "timeout", "patience")
_READ: Final = (*_SHARED, "what", "since", "until", "window", "topic", "key", "label", "page")
_READ_DELIVERIES: Final = (*_SHARED, "what", "topic", "page", "startingOffsets", "maxRecordsPerBatch")
_WRITE: Final = (*_SHARED, "batch", "past", "refused")
_SPARKS: Final = frozenset(("checkpointlocation", "queryname", "path"))
_PAGE, _BATCH = 1_000, 5_000
_KEY_CHARACTERS: Final = 4_096
_EARLIEST, _LATEST = -2, -1  # the values that Spark's Kafka source uses
_RECORDS: Final = 1_000_000  # the default maximum in a batch of a stream
_DOUBLINGS: Final = 16  # of the range length, if one end is open: the last range begins after years


Offsets = dict[str, dict[int, int]]
"""The next offset to read, by topic and partition."""
Spans = Sequence[tuple[int, int]]
"""For each partition of a topic: the first offset that still exists, and the next offset."""


@dataclass(frozen=True, slots=True)
class DeliveryReading:
    """`starting`: the first offsets of a query; other partitions begin at `otherwise`. `most`: the maximum number of
    records in a batch of a stream."""

    server: Server
    topics: tuple[str, ...]
    starting: Mapping[str, Mapping[str, int]]
    otherwise: int
    most: int = _RECORDS
    page: int = 10_000
    patience_s: float = 300.0

    def first(self, spans: Mapping[str, Spans]) -> Offsets:
        """The first offsets of a query. Raises BadInput for offsets outside the topics."""
        first: Offsets = {topic: {} for topic in spans}
        for topic, partitions in spans.items():
            starting = self.starting.get(topic, {})
            if unknown := starting.keys() - set(map(str, range(len(partitions)))):
                raise BadInput(f"option startingOffsets: topic {topic} has no partition {min(unknown)}")
            for partition, (start, end) in enumerate(partitions):
                given = starting.get(str(partition), self.otherwise)
                offset = {_EARLIEST: start, _LATEST: end}.get(given, given)
                if not start <= offset <= end:
                    raise BadInput(
                        f"option startingOffsets: partition {partition} of topic {topic} has offsets {start} to {end}, "
                        f"not {offset}"
                    )
                first[topic][partition] = offset
        return first


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`since`, `until`: due times, epoch ms; `window`: the length of a range in ms, None for a default. `page`:
    messages per answer. `patience_s`: how long a task repeats requests without getting an answer."""

    server: Server
    statuses: tuple[str, ...] = STATUSES["pending"]
    since: int | None = None
    until: int | None = None
    window: int | None = None
    topic: str | None = None
    key: str | None = None
    label: str | None = None
    page: int = _PAGE
    patience_s: float = 300.0

    def ranges(self) -> list[tuple[int | None, int | None]]:
        """The ranges of due times: [since, until) in parts. If one end is open, the lengths double with the distance
        from the other end; if both are open, there is one range."""
        if self.since is None or self.until is None:
            edges: list[int | None] = [self.since, self.until]
            lengths = [(self.window or WINDOW_MS) << doubling for doubling in range(_DOUBLINGS)]
            if self.since is not None:
                edges[1:1] = [at for length in lengths if (at := self.since + length) < LAST_MS]
            elif self.until is not None:
                edges[1:1] = [at for length in reversed(lengths) if (at := self.until - length) > FIRST_MS]
            return list(pairwise(edges))
        span = max(self.until - self.since, 0)
        length = self.window or -(-span // _SOME_RANGES // WINDOW_MS) * WINDOW_MS or WINDOW_MS
        starts = [self.since, *range(self.since - self.since % length + length, self.until, length)]
        if len(starts) > MAX_RANGES:
            raise BadInput(f"option window: makes {len(starts):,} ranges for each shard, the limit is {MAX_RANGES:,}")
        return list(zip(starts, [*starts[1:], self.until], strict=True)) if span else []


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`batch`: messages in one request, at most 10,000. `skip`: refused rows are only counted. `refused`: the folder
    for refused rows of a stream. `past`: accept rows due more than a day ago."""

    server: Server
    batch: int = _BATCH
    patience_s: float = 300.0
    skip: bool = False
    refused: Path | None = None
    past: bool = False


def reading(options: Mapping[str, str]) -> ReadOptions:
    """The options for reading messages. Raises BadInput."""
    values = _own_options(options, _READ)
    what = values.get("what", "pending")
    if what not in STATUSES:
        raise BadInput(f"option what: {what!r} is not one of {', '.join((*STATUSES, DELIVERIES))}")
    return ReadOptions(
        _server(values), STATUSES[what], _time(values, "since"), _time(values, "until"), _time(values, "window"),
        values.get("topic"), values.get("key"), values.get("label"), _number(values, "page", _PAGE, 1_000),
        _seconds(values, "patience", 300.0),
    )  # fmt: skip


def reading_deliveries(options: Mapping[str, str], *, stream: bool = False) -> DeliveryReading:
    """The options for reading deliveries. Raises BadInput."""
    values = _own_options(options, _READ_DELIVERIES)
    if values.get("what") != DELIVERIES:
        raise BadInput(
            f"option what: a stream reads {DELIVERIES}; messages by status have no order to continue from: read them "
            "as a table"
        )
    topics = [topic.strip() for topic in values.get("topic", "").split(",")]
    if not all(topics):
        raise BadInput("option topic: is missing: name the topics to read, separated by commas")
    starting, otherwise = values.get("startingoffsets", "latest" if stream else "earliest"), _EARLIEST
    offsets: Any = {}
    if starting.startswith("{"):
        offsets = _starting(starting, topics)
    elif starting == "latest":
        otherwise = _LATEST
    elif starting != "earliest":
        raise BadInput(f"option startingOffsets: {starting!r} is not one of earliest, latest, or JSON")
    return DeliveryReading(
        _server(values), tuple(dict.fromkeys(topics)), offsets, otherwise,
        _number(values, "maxRecordsPerBatch", _RECORDS, 10**12), _number(values, "page", 10_000, 10_000),
        _seconds(values, "patience", 300.0),
    )  # fmt: skip


def _starting(text: str, topics: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    try:
        offsets: dict[str, dict[str, int]] = json.loads(text)
        numbers = [number for partitions in offsets.values() for number in partitions.values()]
        if offsets.keys() <= set(topics) and all(type(number) is int and number >= _EARLIEST for number in numbers):
            return offsets
    except (ValueError, AttributeError):
        pass
    raise BadInput(
        f'option startingOffsets: must be as {{"orders": {{"0": 23, "1": {_EARLIEST}}}}}, of topics that are read; '
        f"{_EARLIEST} is the earliest offset, {_LATEST} the latest"
    )


def writing(options: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """The options for writing. Raises BadInput."""
    values = _own_options(options, _WRITE)
    refused, past = values.get("refused", "fail"), values.get("past", "reject")
    if past not in ("reject", "send"):
        raise BadInput(f"option past: {past!r} is not one of reject, send")
    folder = local_path(uri_of(refused)) if stream and "/" in refused else None
    if folder is None and stream and refused != "skip":
        raise BadInput(
            "option refused: a stream needs a folder that all executors see under the same path, such as "
            "/shared/refused, or skip: otherwise one refused row would end each run"
        )
    if folder is None and refused not in ("fail", "skip"):
        raise BadInput(f"option refused: {refused!r} is not one of fail, skip")
    batch, patience_s = _number(values, "batch", _BATCH, 10_000), _seconds(values, "patience", 300.0)
    return WriteOptions(_server(values), batch, patience_s, refused == "skip", folder, past == "send")


def _own_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    values = {name.lower(): value for name, value in options.items()}
    values = {name: value for name, value in values.items() if name not in _SPARKS}
    if unknown := sorted(values.keys() - {name.lower() for name in names}):
        raise BadInput(f"option {unknown[0]}: is not known here; known are {', '.join(names)}")
    return values


def _server(values: Mapping[str, str]) -> Server:
    key, path = values.get("api_key"), values.get("api_key_file")
    if path is not None:
        if key is not None:
            raise BadInput("option api_key_file: does not go with api_key")
        try:
            with Path(path).open(encoding="ascii") as file:
                key = file.readline(_KEY_CHARACTERS).strip()
        except (OSError, ValueError):
            key = None
        if not key:
            raise BadInput(f"option api_key_file: the first line of {path} is no key that can be read here")
    return Server.at(values.get("url"), key, _seconds(values, "timeout", 60.0))


def _time(values: Mapping[str, str], name: str) -> int | None:
    parse = parse_duration if name == "window" else parse_instant
    try:
        ms = parse(values[name], f"option {name}", text=True) if name in values else None
    except Rejected as error:
        raise BadInput(error.detail) from error
    if name == "window" and ms is not None and ms < 1_000:
        raise BadInput(f"option window: must be a second or longer, not {values['window']}")
    return ms


def _number(values: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = values.get(name.lower(), str(default))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= most:
        raise BadInput(f"option {name}: must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


def _seconds(values: Mapping[str, str], name: str, default: float) -> float:
    text = values.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise BadInput(f"option {name}: must be seconds, 0 to a day, not {text!r}")
    return seconds
