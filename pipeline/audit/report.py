"""The report: one HTML file with everything in it, that says at a glance whether every message is accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from duemq.model.timing import format_ms
from duemq.pipeline.audit import charts
from duemq.pipeline.audit.job import AuditResult
from duemq.pipeline.audit.lateness import Spread
from duemq.pipeline.audit.violations import KINDS
from duemq.pipeline.report.document import Html, document, table

_WORDS: Final = {
    "delivered": "delivered", "cancelled": "cancelled", "moved": "moved on", "dead": "dead", "pending": "pending",
    "lost": "lost", "unproven": "cannot be known",
}  # fmt: skip
_ALWAYS: Final = ("delivered", "cancelled", "moved", "dead", "pending")
_OTHERS: Final = {
    "direct": "records of messages without delay, which enter no shard",
    "earlier": "records of messages that were accepted before the range",
    "delivered after the range": "records of messages that were accepted after the range",
    "not applied yet": "messages in the buffer that no cycle has applied in the range",
    "nowhere": "records with ids of no shard",
}  # fmt: skip


def verdict(result: AuditResult) -> str:
    """The result of an audit in a sentence."""
    if not result.clean:
        return f"{result.violations:,} violation{'s' if result.violations != 1 else ''}"
    if not result.shards and not result.waiting:
        return "Nothing to account for: the ledger has no entry in this range"
    if waiting := sum(result.waiting.values()):
        shards = "1 shard" if len(result.waiting) == 1 else f"{len(result.waiting)} shards"
        return f"No violation; {waiting:,} messages wait in {shards} without a ledger entry in this range"
    if unproven := result.account["unproven"]:
        return f"No violation; of {unproven:,} messages it cannot be known"
    return "Every message is accounted for"


def equation(result: AuditResult) -> list[tuple[str, str, int]]:
    """The outcomes that accepted messages are the sum of: name, in words, how many."""
    return [(name, _WORDS[name], n) for name, n in result.account.items() if n or name in _ALWAYS]


def report(result: AuditResult, title: str, made_at: int) -> str:
    """The page. `title`: what was audited; `made_at` in epoch ms."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict {"good" if result.clean else "bad"}">{escape(verdict(result))}</p>',
        f'<p class="soft">{_span(result)} Made {_time(made_at)}.</p>',
        _equation(result),
        _violations(result),
        _lateness(result),
        _others(result),
        _read(result),
    ]
    return document(f"{verdict(result)}: {title}", parts)


def _span(result: AuditResult) -> str:
    if not result.shards:
        return ""
    began = [one.began_at for one in result.shards if one.began_at]
    until = _time(max(one.ended_at for one in result.shards))
    since = f"after {_time(min(began))}" if began and len(began) == len(result.shards) else "since the beginning"
    shards = "1 shard" if len(result.shards) == 1 else f"{len(result.shards)} shards"
    return f"What {shards} did {since}, until {until}."


def _equation(result: AuditResult) -> str:
    cells = [f"<div><b>{result.accepted:,}</b><span>accepted</span></div><em>=</em>"]
    for index, (name, words, count) in enumerate(equation(result)):
        wrong = ' class="wrong"' if name == "lost" else ""
        cells.append(f"{'<em>+</em>' if index else ''}<div{wrong}><b>{count:,}</b><span>{words}</span></div>")
    return f'<div class="sum">{"".join(cells)}</div>'


def _violations(result: AuditResult) -> str:
    if result.clean:
        return ""
    kinds = table(
        ("what", "how many|n", "it means"),
        ((Html(f"<b>{kind}</b>"), count, KINDS[kind]) for kind, count in result.violation_counts.items()),
    )
    rows = (
        (
            row["kind"], str(row["shard"]), _code(row["id"] or ""), row["topic"], _time(row["asked"]),
            _time(row["delivered_at"]), row["detail"],
        )
        for row in result.shown
    )  # fmt: skip
    listed = table(("what", "shard|n", "id", "topic", "due", "delivered", "what is known"), rows)
    more = result.violations - len(result.shown)
    note = f'<p class="soft">{more:,} more are in the table <code>violations</code>.</p>' if more else ""
    return f"<h2>Violations</h2>{kinds}<h2>Which messages</h2>{listed}{note}"


def _lateness(result: AuditResult) -> str:
    late, whole = result.late, result.late.whole
    if whole is None:
        return ""
    topics = _spreads("topic", {name or "(not read)": one for name, one in late.topics.items()})
    shards = _spreads("shard", {_shard(number): one for number, one in late.shards.items()})
    hours = late.hours
    by_hour = f"<h2>By hour</h2>{charts.by_hour(hours)}" if len(hours) > 1 else ""
    return (
        "<h2>How late messages came</h2>"
        f'<p class="soft">From the time it was due to the time its record was appended: half of {whole.messages:,} '
        f"messages within {whole.p50:,} ms, 99 % within {whole.p99:,} ms, the last after {whole.highest:,} ms.</p>"
        f"{charts.histogram([ms for ms, _ in late.counts], [messages for _, messages in late.counts])}"
        f"{by_hour}<h2>By topic</h2>{topics}<h2>By shard</h2>{shards}"
    )


def _shard(number: int) -> str:
    return "without delay" if number == 0xFFFF else str(number)


def _spreads(by: str, spreads: Mapping[str, Spread]) -> str:
    heads = (by, "messages|n", "p50 ms|n", "p90 ms|n", "p99 ms|n", "p99.9 ms|n", "max ms|n")
    return table(
        heads,
        ((name, one.messages, one.p50, one.p90, one.p99, one.p999, one.highest) for name, one in spreads.items()),
    )


def _others(result: AuditResult) -> str:
    rows = [(_OTHERS.get(part, part), count) for part, count in result.others.items()]
    rows += [(Html(f"answers {_code(name)}"), count) for name, count in sorted(result.answers.items())]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    beside = table(("what", "how many|n"), rows) if rows else ""
    unknown = f"<h2>What cannot be known</h2><ul>{notes}</ul>" if notes else ""
    return f"<h2>Beside that</h2>{beside}{unknown}" if rows else unknown


def _read(result: AuditResult) -> str:
    rows = [
        (
            _code(one.topic), one.count,
            _code(", ".join(f"{p}: {start}..{one.ends[p]}" for p, start in sorted(one.starts.items()))),
        )
        for one in result.ranges
    ]  # fmt: skip
    shards = [
        (
            str(one.shard), f"{one.base_n + 1:,} to {one.last_n:,}", f"{one.known_from:,} to {one.applied - 1:,}",
            one.gained.accepted, _time(one.ended_at),
        )
        for one in result.shards
    ]  # fmt: skip
    heads = ("shard", "ledger entries", "commands", "accepted by the ledger|n", "last entry")
    return (
        f"<h2>What was read</h2>{table(('topic', 'offsets|n', 'partition: from..to'), rows)}"
        f"<h2>Shards</h2>{table(heads, shards)}"
    )


def _code(text: str) -> Html:
    return Html(f"<code>{escape(text)}</code>")


def _time(at: int | None) -> str:
    return "" if at is None else format_ms(at)
