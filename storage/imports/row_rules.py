"""Rules for a message in an imported file. They are the same as over HTTP (proxy/request/ingress.py).

Whole batches are checked at once. Python handles a single row only to describe its fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duemq.model.errors import BadDelayFile
from duemq.model.messages.message import is_topic
from duemq.model.messages.record import HEADER
from duemq.model.timing import LAST_MS, WINDOW_MS, format_ms, shown, why_implausible, window_of
from duemq.model.topics.rules import HEADER_NAME_CHARACTERS, LABEL, MAX_LABELS, RESERVED_HEADERS, TOPIC_RULE
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.storage.limits import ImportLimits

_KNOWN_TOPICS = 10_000
_LABEL = f"^(?:{LABEL.pattern})$"


class RowProblem(NamedTuple):
    """The first row in a batch that breaks a rule, and how it does so."""

    row: int
    column: str
    sentence: str


class ImportRules:
    """Checks the batches of one file, in order. `window`: the file's window (start, ms); None: the window of the first
    row."""

    def __init__(self, limits: ImportLimits, window: int | None) -> None:
        self.window, self._limits = window, limits
        self.rows, self.first_due, self.last_due = 0, 0, 0
        self._allows = topic_matcher(limits.topics) if limits.topics else None
        self._known_topics: set[str] = set()

    def check(self, batch: pa.RecordBatch) -> None:
        """Check a batch in the form of `columns.SCHEMA`. Raises BadDelayFile for the first wrong row."""
        wrong = [problem for problem in self._all(batch) if problem is not None]
        if wrong:
            row, column, sentence = min(wrong, key=lambda problem: problem.row)  # in that row, the first wrong column
            raise BadDelayFile(sentence, self.rows + row, column)
        dues = batch["due_ms"]
        if not self.rows:
            self.first_due = dues[0].as_py()
        self.rows, self.last_due = self.rows + len(dues), dues[-1].as_py()

    def _all(self, batch: pa.RecordBatch) -> Iterator[RowProblem | None]:
        yield from self._dues(batch["due_ms"])
        yield from self._topics(batch["topic"])
        yield self._too_long("payload", batch["payload"], self._limits.max_payload_bytes)
        yield self._too_long("key", batch["key"], self._limits.max_key_bytes)
        yield from self._headers(batch["headers"])
        yield from self._labels(batch["labels"])
        yield self._expires(batch["expires_ms"], batch["due_ms"])

    def _dues(self, column: pa.Array) -> Iterator[RowProblem | None]:
        yield _null("due_ms", column)
        dues = _numbers(column)
        before = np.concatenate((dues[:1] if self.rows == 0 else [self.last_due], dues[:-1]))
        if (at := _first(dues < before)) is not None:
            yield RowProblem(
                at, "due_ms", f"{dues[at]} is before {before[at]}, the row before it: rows must be sorted by due_ms"
            )
        if self.window is None:
            if (wrong := why_implausible(int(dues[0]))) is not None:
                yield RowProblem(0, "due_ms", wrong)
                return
            self.window = window_of(int(dues[0]))
        end = self.window + WINDOW_MS
        if (at := _first((dues < self.window) | (dues >= end))) is not None:
            yield RowProblem(
                at, "due_ms",
                f"{dues[at]} is not in the window of this file, {self.window} to {end - 1} "
                f"({format_ms(self.window)} and 30 minutes from there)",
            )  # fmt: skip

    def _topics(self, column: pa.Array) -> Iterator[RowProblem | None]:
        yield _null("topic", column)
        for topic in pc.unique(column.cast(pa.binary())).drop_null().to_pylist():
            if topic in self._known_topics:
                continue
            if (sentence := self._topic(topic)) is not None:
                yield RowProblem(pc.index(column.cast(pa.binary()), topic).as_py(), "topic", sentence)
            elif len(self._known_topics) < _KNOWN_TOPICS:
                self._known_topics.add(topic)

    def _topic(self, topic: bytes) -> str | None:
        """The fault of a topic; None if it is valid."""
        text = topic.decode(errors="replace")
        if not is_topic(topic):
            return (
                f"{TOPIC_RULE}, neither . nor .., and not begin with duemq. (those "
                f"are duemq's own) or __ (those are the brokers' own), not {shown(text)}"
            )
        if self._allows is not None and not self._allows(text):
            return f"{text} is not among the topics this server delivers to"
        return None

    def _too_long(self, name: str, column: pa.Array, limit: int) -> RowProblem | None:
        lengths = _numbers(pc.binary_length(column))
        if (at := _first(lengths > limit)) is None:
            return None
        return RowProblem(at, name, f"has {lengths[at]} bytes, the limit is {limit}")

    def _headers(self, column: pa.Array) -> Iterator[RowProblem | None]:
        counts, limits = _numbers(pc.list_value_length(column)), self._limits
        if (at := _first(counts > limits.max_headers)) is not None:
            yield RowProblem(at, "headers", f"{counts[at]} headers are given, the limit is {limits.max_headers}")
        each, parents = pc.list_flatten(column), pc.list_parent_indices(column).to_numpy()
        if not len(each):
            return
        names, values = pc.struct_field(each, "name"), pc.struct_field(each, "value")

        def wrong(at: int | None, sentence: str) -> RowProblem | None:
            return None if at is None else RowProblem(int(parents[at]), "headers", sentence)

        sizes = HEADER.size + _numbers(pc.binary_length(names)) + _numbers(pc.binary_length(values))
        totals = np.bincount(parents, sizes, len(column)).astype(np.int64)
        yield wrong(_first(_mask(each.is_null())), "a header is null")
        yield wrong(_first(_mask(names.is_null())), "the name of a header is null")
        names, bad_text = _sound(names)
        yield wrong(bad_text, "the name of a header is not UTF-8")
        lengths = _numbers(pc.utf8_length(names), 1)
        at = _first((lengths < 1) | (lengths > HEADER_NAME_CHARACTERS))
        if at is not None:
            yield wrong(at, f"header names have 1 to {HEADER_NAME_CHARACTERS} characters, not {lengths[at]}")
        at = _first(_mask(pc.starts_with(names, RESERVED_HEADERS, ignore_case=True).fill_null(False)))
        if at is not None:
            yield wrong(at, f"header {shown(names[at].as_py())}: the prefix {RESERVED_HEADERS} is duemq's own")
        if (row := _first(totals > limits.max_headers_bytes)) is not None:
            yield RowProblem(row, "headers", f"have {totals[row]} bytes, the limit is {limits.max_headers_bytes}")

    def _labels(self, column: pa.Array) -> Iterator[RowProblem | None]:
        counts = _numbers(pc.list_value_length(column))
        if (at := _first(counts > MAX_LABELS)) is not None:
            yield RowProblem(at, "labels", f"{counts[at]} labels are given, the limit is {MAX_LABELS}")
        each, parents = pc.list_flatten(column), pc.list_parent_indices(column).to_numpy()
        if not len(each):
            return
        if (at := _first(_mask(each.is_null()))) is not None:
            yield RowProblem(int(parents[at]), "labels", "a label is null")
        each, bad_text = _sound(each)
        if bad_text is not None:
            yield RowProblem(int(parents[bad_text]), "labels", "a label is not UTF-8")
        at = _first(~_mask(pc.match_substring_regex(each, _LABEL).fill_null(True)))
        if at is not None:
            yield RowProblem(
                int(parents[at]), "labels",
                "a label has 1 to 128 characters, none of them a comma or a control character, "
                f"not {shown(each[at].as_py())}",
            )  # fmt: skip

    def _expires(self, column: pa.Array, due: pa.Array) -> RowProblem | None:
        if column.null_count == len(column):
            return None
        expires, dues = _numbers(column.fill_null(due)), _numbers(due)
        if (at := _first((expires < dues) | (expires > LAST_MS))) is None:
            return None
        if (wrong := why_implausible(int(expires[at]))) is not None:
            return RowProblem(at, "expires_ms", wrong)
        return RowProblem(at, "expires_ms", f"{expires[at]} is before the message is due, {dues[at]}")


def _numbers(column: pa.Array, default: int = 0) -> npt.NDArray[np.int64]:
    """A column as numpy, with `default` for null."""
    numbers: npt.NDArray[np.int64] = column.fill_null(default).to_numpy(zero_copy_only=False)
    return numbers


def _mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return mask


def _first(mask: npt.NDArray[np.bool_]) -> int | None:
    """The index of the first true value; None if there is none."""
    at = int(mask.argmax()) if len(mask) else 0
    return at if len(mask) and mask[at] else None


def _null(name: str, column: pa.Array) -> RowProblem | None:
    at = _first(_mask(column.is_null())) if column.null_count else None
    return None if at is None else RowProblem(at, name, "is null; every message needs one")


def _sound(texts: pa.Array) -> tuple[pa.Array, int | None]:
    """The texts before the first one with invalid UTF-8 (which Parquet writers may produce), and the index of that
    text."""
    raw = texts.cast(pa.binary())
    try:
        return raw.cast(pa.string()), None
    except pa.ArrowInvalid:
        for at, text in enumerate(raw.to_pylist()):
            try:
                (text or b"").decode()
            except UnicodeDecodeError:
                return raw[:at].cast(pa.string()), at
        raise
