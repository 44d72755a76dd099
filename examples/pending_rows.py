"""Shared by `from_rabbitmq.py`, `from_celery.py` and `from_rocketmq.py`: turns documents into rows for bulk schedule.

Each program writes a file of JSON lines, which is a table for `duemq spark schedule`:

    duemq spark schedule pending.jsonl --due due_ms --topic topic --payload-base64 payload --key key --headers headers \
        --labels labels --expires expires_ms --name name --stage /shared/jobs --rejects rejects/

and a second file with the documents that do not become messages, with the reasons.
"""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from typing import Any


class NotPending(Exception):
    """The document is not a waiting message; the sentence says why."""


@dataclass
class PendingRow:
    """A message that waits in another system. Times are epoch ms.

    `twin`: if several messages have the same one, only the latest counts. `ends`: this is not a message, but takes back
    the message with this `twin`.
    """

    due_ms: int
    topic: str
    payload: bytes
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    expires_ms: int | None = None
    name: str | None = None
    twin: str | None = None
    ends: str | None = None

    def line(self) -> str:
        fields = {
            "due_ms": self.due_ms, "topic": self.topic, "payload": base64.b64encode(self.payload).decode(),
            "key": self.key, "headers": json.dumps(self.headers), "labels": self.labels,
            "expires_ms": self.expires_ms, "name": self.name,
        }  # fmt: skip
        return json.dumps(fields) + "\n"


Documents = Iterator[tuple[str, Any]]
"""Pairs of a position and the document there: parsed, or as text that may not be JSON."""


def options(description: str | None, paths: str) -> ArgumentParser:
    """The options that all programs have. `paths`: the description of the arguments."""
    parser = ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", metavar="PATH", help=paths)
    parser.add_argument("--out", type=Path, default=Path("pending.jsonl"), help="a new file; another one gets rejects")
    return parser


def read_documents(paths: Sequence[str]) -> Documents:
    """The documents in files. A file has one document per line, or is a single document, which may be a list."""
    for path in paths:
        if path.endswith((".jsonl", ".ndjson")):
            yield from _lines(path)
            continue
        text = Path(path).read_text("utf-8", "replace")
        try:
            whole = json.loads(text)
        except ValueError:
            yield from _lines(path)
            continue
        if isinstance(whole, list):
            yield from ((f"{path}[{at}]", document) for at, document in enumerate(whole))
        else:
            yield path, whole


def _lines(path: str) -> Documents:
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}:{number}", line


def write_rows(documents: Callable[[], Documents], read: Callable[[Any], PendingRow], out: Path) -> Counter[str]:
    """Write the messages to `out` and the other documents to its `-rejects`. Returns the number of messages, and of
    rejects by reason.

    The documents are read twice, because a later document may take back or repeat an earlier message.
    """
    over: set[str] = set()
    latest: dict[str, tuple[int, int]] = {}
    for number, (_, document) in enumerate(documents()):
        try:
            row = read(_parsed(document))
        except NotPending:
            continue
        if row.ends is not None:
            over.add(row.ends)
        elif row.twin is not None:
            place = row.due_ms, number
            latest[row.twin] = max(latest.get(row.twin, place), place)

    def row_of(number: int, document: Any) -> PendingRow:
        row = read(_parsed(document))
        if row.ends is not None:
            raise NotPending("no message: it takes back another one")
        if row.twin in over:
            raise NotPending("it was taken back")
        if row.twin is not None and latest[row.twin] != (row.due_ms, number):
            raise NotPending("the same message stands there again")
        return row

    reasons: Counter[str] = Counter()
    rejects = out.with_name(f"{out.stem}-rejects{out.suffix}")
    with out.open("x") as messages, rejects.open("x") as others:
        for number, (where, document) in enumerate(documents()):
            try:
                messages.write(row_of(number, document).line())
                reasons["messages written"] += 1
            except NotPending as error:
                reject = {"source": where, "reason": str(error), "raw": document}
                others.write(json.dumps(reject) + "\n")
                reasons[f"rejected: {error}"] += 1
    for reason, count in reasons.most_common():
        print(f"{count:>10,}  {reason}")
    return reasons


def _parsed(document: Any) -> Any:
    try:
        return json.loads(document) if isinstance(document, str) else document
    except ValueError as error:
        raise NotPending("not JSON") from error


def whole(value: Any, what: str) -> int:
    """A number that may be given as text; fractions are rounded up."""
    try:
        return int(Decimal(str(value)).to_integral_value(ROUND_CEILING))
    except (InvalidOperation, OverflowError, ValueError) as error:
        raise NotPending(f"{what} is no number: {value!r}") from error


def instant(text: str) -> int:
    """Epoch ms for the value of an option: a number of ms, or a date-time with a zone."""
    if text.isdecimal():
        return int(text)
    if (at := datetime.fromisoformat(text)).utcoffset() is None:
        raise ValueError("it has no zone")
    return int(at.timestamp() * 1000)


def delay(value: Any, what: str) -> int:
    if (ms := whole(value, what)) < 0:
        raise NotPending(f"{what} is negative: the message has been released, and waits for a consumer")
    return ms


def from_base64(text: Any, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise NotPending(f"{what} is not base64") from error
