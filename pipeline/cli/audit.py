"""`duemq spark audit`: checks whether every message is accounted for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.pipeline.cli import command as common

if TYPE_CHECKING:
    from duemq.pipeline.audit.job import AuditResult

VIOLATED = 1

EXAMPLES = common.examples(
    "duemq spark audit --kafka localhost:9092 --out audit",
    "duemq spark audit --kafka localhost:9092 --since 2026-05-01T00:00:00Z --until 2026-05-02T00:00:00Z --out may-1st",
    "duemq spark audit --kafka localhost:9092 --topics orders --topics invoices --out audit --json",
    "duemq spark audit --kafka localhost:9092 --dead-letters failed --strict 0 --out audit",
    "duemq spark audit --kafka localhost:9092 --expected /shared/jobs/spring/ids --out audit",
)


def audit(
    out: Annotated[str, typer.Option(metavar="DIR", help="A path or URI for the tables and report.html.")],
    bootstrap: common.Bootstrap = "127.0.0.1:9092",
    kafka_set: common.KafkaSettings = None,
    since: Annotated[
        str | None, typer.Option(help="Ledger entries from then on: RFC 3339 with a zone, or epoch ms.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Ledger entries before then.")] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(help="A topic; may be repeated. '*': all, also copies.", show_default="those of deliveries"),
    ] = None,
    tolerance_ms: Annotated[
        int, typer.Option("--tolerance", min=0, help="How many ms a record may be early, because clocks differ.")
    ] = 0,
    longest_retry: Annotated[
        str, typer.Option(metavar="DURATION", help="The longest of the servers' delivery.retry_delays.")
    ] = "1d",
    dead_letters: common.DeadLetters = "duemq.dlq",
    strict: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="End with 1 if over N outcomes are unknown.", show_default="no limit"),
    ] = None,
    outcomes: Annotated[
        bool, typer.Option("--outcomes", help="Also write the table outcomes, a row per message: it takes much longer.")
    ] = False,
    expected: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="A file, folder or table with a column id: ids in no log are violations."),
    ] = None,
    master: common.Master = None,
    conf: common.Settings = None,
    as_json: common.AsJson = False,
) -> None:
    """Reconcile every message: accepted = delivered + cancelled + moved on + dead + pending.

    Reads buffer, ledger, topics and dead letters, lists each violation (lost, twice, early, delivered after a won
    cancel, and more), measures lateness, and writes tables (Parquet) and a report (HTML). The exit code is 0 for clean
    logs, 1 for violations or for more unknown outcomes than --strict allows, and 9 for a failed audit
    (docs/guides/pipeline/audit.md).
    """
    since_ms = None if since is None else common.instant_of(since, "--since")
    until_ms = None if until is None else common.instant_of(until, "--until")
    longest_retry_ms = common.duration_of(longest_retry, "--longest-retry")
    with common.spark_session("audit", master, conf, as_json, kafka=True, failed=common.BROKEN) as (spark, teller):
        from duemq.pipeline.audit.job import audit as run
        from duemq.pipeline.audit.report import equation, report, verdict
        from duemq.pipeline.files.uris import below, destination
        from duemq.pipeline.logs.tables import read_table
        from duemq.pipeline.report.place import check_page, write_page

        folder, page = destination(spark, out, "--out"), below(out, "report.html")
        check_page(spark, folder, "--out")
        result = run(
            spark, common.reached(bootstrap, kafka_set), folder,
            since=since_ms, until=until_ms, topics=topics or (), tolerance_ms=tolerance_ms,
            longest_retry_ms=longest_retry_ms, teller=teller, dead_letters=dead_letters, outcomes_table=outcomes,
            expected_ids=None if expected is None else read_table(spark, expected),
        )  # fmt: skip
        html = report(result, f"Audit of duemq on {bootstrap}", time.time_ns() // 1_000_000)
        write_page(spark, below(folder, "report.html"), html)
    if as_json:
        common.echo_json(_json(result, page) | {"unknown": result.unknown})
    else:
        typer.secho(verdict(result), fg=typer.colors.GREEN if result.clean else typer.colors.RED, bold=True)
        typer.echo(
            f"{result.accepted:,} accepted = " + " + ".join(f"{n:,} {words}" for _, words, n in equation(result))
        )
        for kind, count in result.violation_counts.items():
            typer.echo(f"{count:10,} {kind}")
        for note in result.notes:
            typer.echo(f"note: {note}")
        typer.echo(f"report: {page}")
    if too_many := strict is not None and result.unknown > strict:
        sentence = f"duemq: the outcome of {result.unknown:,} messages is unknown; --strict allows {strict:,}"
        typer.secho(sentence, err=True, fg=typer.colors.RED)
    if too_many or not result.clean:
        raise typer.Exit(VIOLATED)


def _json(result: AuditResult, page: str) -> dict[str, Any]:
    from dataclasses import asdict

    from duemq.pipeline.audit.report import verdict

    late = {name: asdict(one) for name, one in result.late.topics.items() if name is not None}
    return {
        "clean": result.clean, "verdict": verdict(result), "accepted": result.accepted, "outcomes": result.account,
        "others": result.others, "violations": result.violation_counts, "notes": list(result.notes),
        "lateness_ms": late,
        "read": {
            one.topic: {str(p): [start, one.ends[p]] for p, start in one.starts.items()} for one in result.ranges
        },
        "report": page,
    }  # fmt: skip
