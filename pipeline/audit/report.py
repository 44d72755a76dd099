"""The report: one HTML file with everything in it, that says at a glance whether every message is accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from duemq.model.timing import format_ms
from duemq.pipeline.audit import charts
from duemq.pipeline.audit.job import Result
from duemq.pipeline.audit.lateness import Spread
from duemq.pipeline.audit.violations import KINDS

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

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --page: #fff; --card: #f5f6f8; --line: #d9dde3;
  --good: #11763b; --bad: #b3261e; --l0: #2f6fb2; --l1: #c77700; --l2: #8f4bb0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --page: #14171b; --card: #1d2127;
  --line: #343a43; --good: #4cc47e; --bad: #ff7b72; --l0: #6ea8e5; --l1: #f0a83c; --l2: #c994e6; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 60rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1rem; font-weight: 600; color: var(--soft); margin: 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
.verdict { font-size: 2.1rem; line-height: 1.2; font-weight: 700; margin: .3rem 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .soft { color: var(--soft); }
.sum { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: 1.5rem 0 .5rem; }
.sum div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .4rem .8rem; }
.sum b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.sum span { color: var(--soft); font-size: .85rem; }
.sum em { font-style: normal; font-size: 1.3rem; color: var(--soft); }
.sum .wrong { border-color: var(--bad); } .sum .wrong b { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: 1; } .bar { fill: var(--l0); }
.line { fill: none; stroke-width: 2; } .line.l0 { stroke: var(--l0); } .line.l1 { stroke: var(--l1); }
.line.l2 { stroke: var(--l2); }
.dot.l0 { fill: var(--l0); } .dot.l1 { fill: var(--l1); } .dot.l2 { fill: var(--l2); }
.key { margin-right: 1rem; color: var(--soft); font-size: .85rem; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
i.l0 { background: var(--l0); } i.l1 { background: var(--l1); } i.l2 { background: var(--l2); }
"""


def verdict(result: Result) -> str:
    """In a sentence."""
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


def equation(result: Result) -> list[tuple[str, str, int]]:
    """The fates that accepted messages are the sum of: name, in words, how many."""
    return [(name, _WORDS[name], n) for name, n in result.account.items() if n or name in _ALWAYS]


def report(result: Result, title: str, made_at: int) -> str:
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
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(verdict(result))}: {escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _span(result: Result) -> str:
    if not result.shards:
        return ""
    began = [one.began_at for one in result.shards if one.began_at]
    until = _time(max(one.ended_at for one in result.shards))
    since = f"after {_time(min(began))}" if began and len(began) == len(result.shards) else "since the beginning"
    shards = "1 shard" if len(result.shards) == 1 else f"{len(result.shards)} shards"
    return f"What {shards} did {since}, until {until}."


def _equation(result: Result) -> str:
    cells = [f"<div><b>{result.accepted:,}</b><span>accepted</span></div><em>=</em>"]
    for index, (name, words, count) in enumerate(equation(result)):
        wrong = ' class="wrong"' if name == "lost" else ""
        cells.append(f"{'<em>+</em>' if index else ''}<div{wrong}><b>{count:,}</b><span>{words}</span></div>")
    return f'<div class="sum">{"".join(cells)}</div>'


def _violations(result: Result) -> str:
    if result.clean:
        return ""
    kinds = _table(
        ("what", "how many|n", "it means"),
        ((f"<b>{kind}</b>", f"{count:,}", escape(KINDS[kind])) for kind, count in result.found.items()),
    )
    rows = (
        (
            escape(row["kind"]), f"{row['shard']}", f"<code>{escape(row['id'] or '')}</code>",
            escape(row["topic"] or ""), _time(row["asked"]), _time(row["delivered_at"]), escape(row["detail"] or ""),
        )
        for row in result.shown
    )  # fmt: skip
    listed = _table(("what", "shard|n", "id", "topic", "due", "delivered", "what is known"), rows)
    more = result.violations - len(result.shown)
    note = f'<p class="soft">{more:,} more are in the table <code>violations</code>.</p>' if more else ""
    return f"<h2>Violations</h2>{kinds}<h2>Which messages</h2>{listed}{note}"


def _lateness(result: Result) -> str:
    late, whole = result.late, result.late.whole
    if whole is None:
        return ""
    topics = _spreads("topic", {name or "(not read)": one for name, one in late.topics.items()})
    shards = _spreads("shard", {_shard(number): one for number, one in late.shards.items()})
    hours = late.hours
    by_hour = f"<h2>By hour</h2><p>{charts.legend()}</p>{charts.by_hour(hours)}" if len(hours) > 1 else ""
    return (
        "<h2>How late messages came</h2>"
        f'<p class="soft">From the time it was due to the time its record was appended: half of {whole.messages:,} '
        f"messages within {whole.p50:,} ms, 99 % within {whole.p99:,} ms, the last after {whole.highest:,} ms.</p>"
        f"{charts.histogram([ms for ms, _ in late.counts], [messages for _, messages in late.counts])}"
        f"{by_hour}<h2>By topic</h2>{topics}<h2>By shard</h2>{shards}"
    )


def _shard(number: int) -> str:
    return "without delay" if number == 0xFFFF else str(number)


def _spreads(by: str, found: Mapping[str, Spread]) -> str:
    heads = (by, "messages|n", "p50 ms|n", "p90 ms|n", "p99 ms|n", "p99.9 ms|n", "max ms|n")
    return _table(
        heads,
        (
            (escape(name), *(f"{n:,}" for n in (one.messages, one.p50, one.p90, one.p99, one.p999, one.highest)))
            for name, one in found.items()
        ),
    )


def _others(result: Result) -> str:
    rows = [(escape(_OTHERS.get(part, part)), f"{count:,}") for part, count in result.others.items()]
    rows += [(f"answers <code>{name}</code>", f"{count:,}") for name, count in sorted(result.answers.items())]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    beside = _table(("what", "how many|n"), rows) if rows else ""
    unknown = f"<h2>What cannot be known</h2><ul>{notes}</ul>" if notes else ""
    return f"<h2>Beside that</h2>{beside}{unknown}" if rows else unknown


def _read(result: Result) -> str:
    rows = [
        (
            f"<code>{escape(one.topic)}</code>", f"{one.count:,}",
            f"<code>{', '.join(f'{p}: {start}..{one.ends[p]}' for p, start in sorted(one.starts.items()))}</code>",
        )
        for one in result.ranges
    ]  # fmt: skip
    shards = [
        (
            f"{one.shard}", f"{one.base_n + 1:,} to {one.last_n:,}", f"{one.known_from:,} to {one.applied - 1:,}",
            f"{one.gained.accepted:,}", _time(one.ended_at),
        )
        for one in result.shards
    ]  # fmt: skip
    heads = ("shard", "ledger entries", "commands", "accepted by the ledger|n", "last entry")
    return (
        f"<h2>What was read</h2>{_table(('topic', 'offsets|n', 'partition: from..to'), rows)}"
        f"<h2>Shards</h2>{_table(heads, shards)}"
    )


def _time(at: int | None) -> str:
    return "" if at is None else format_ms(at)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Of HTML cells. A head that ends in `|n` has a column of numbers."""
    numbers = [head.endswith("|n") for head in heads]

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number else ''}>{value}</{tag}>"
            for value, number in zip(values, numbers, strict=True)
        )

    head = cells("th", [escape(head.removesuffix("|n")) for head in heads])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
