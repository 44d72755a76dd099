"""`duemq job begin`, `ls`, `get`, `pause`, `resume` and `cancel`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from duemq.cli.confirmation import Yes, confirm, must_ask
from duemq.cli.job_progress import begin_job, kind_text, tell_job, wait_for_job
from duemq.cli.messages import pending
from duemq.cli.messages.pending import DueFrom, DueTo, Key, Label, NamePrefix, Rate, Topic, TopicPrefix
from duemq.cli.output import Wide, echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples
from duemq.cli.times import Zone, duration, when

_MOVES = {"reschedule": "move", "move": "move", "move-with-expiry": "move-with-expiry"}
"""The API's names for kinds of jobs; scripts written for older versions may use them."""

app = typer.Typer(help="Start, list, pause, resume and cancel bulk jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `duemq job ls` lists it.")]


@app.command(
    "begin",
    epilog=examples(
        "duemq job begin cancel --topic orders --label reminder --dry-run",
        "duemq job begin reschedule --topic orders --shift 2h --rate 2000 --wait",
        "duemq job begin deliver-now --key order-17 --yes",
    ),
)
def begin(
    kind: Annotated[
        Literal["cancel", "reschedule", "deliver-now", "move", "move-with-expiry"],
        typer.Argument(metavar="KIND", help="cancel, reschedule or deliver-now."),
    ],
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    at: Annotated[str | None, typer.Option(help="Reschedule to this time.")] = None,
    after: Annotated[str | None, typer.Option(help="Reschedule to this long from now.")] = None,
    zone: Zone = None,
    shift: Annotated[str | None, typer.Option(help="Move each by this duration, such as 2h or -30m.")] = None,
    shift_expiry: Annotated[bool, typer.Option("--shift-expiry", help="Move the expiry by the same amount.")] = False,
    rate: Rate = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job, with a bar.")] = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel, reschedule or deliver now all pending messages that match, each once, even if processes are killed.

    Dead letters: `duemq dlq redrive` and `purge`.
    """
    chosen = pending.filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix)
    if not chosen:
        raise typer.BadParameter("give a filter: without one it would apply to all messages", param_hint="--topic")
    wire_kind: str = kind
    if kind in _MOVES:
        wire_kind = "move-with-expiry" if shift_expiry else _MOVES[kind]
        if [at, after, shift].count(None) != 2:
            raise typer.BadParameter("give one of --at, --after and --shift", param_hint="--shift")
    elif at or after or shift or shift_expiry:
        raise typer.BadParameter(f"--at, --after and --shift are for reschedule, not for {kind}", param_hint="--shift")
    given = {"shift": duration(shift, "--shift", signed=True), "rate": rate, **when(after, at, None, zone)}
    fields = {"filter": chosen} | {name: value for name, value in given.items() if value is not None}
    with connected(url, as_json) as client:
        raise typer.Exit(begin_job(client, wire_kind, fields, "messages", dry_run, wait, yes, as_json))


@app.command("ls", epilog=examples("duemq job ls", "duemq job ls --json | jq -r '.jobs[].state'"))
def list_jobs(wide: Wide = False, url: Url = None, as_json: AsJson = False) -> None:
    """List the known bulk jobs, newest first."""
    with connected(url, as_json) as client:
        jobs = client.jobs()
    if as_json:
        echo_json({"jobs": jobs})
        return
    rows = [
        (job["id"], kind_text(job["kind"]), job["state"], "?" if job["total"] is None else str(job["total"]),
         str(job["done"]), str(job["skipped"]), str(job["failed"]), job["created_at"], job["by"])
        for job in jobs
    ]  # fmt: skip
    columns = ("ID", "KIND", "STATE", "TOTAL", "DONE", "SKIPPED", "FAILED", "CREATED", "BY")
    echo_table(columns, rows, short=("ID", "KIND", "STATE", "TOTAL", "DONE", "FAILED", "CREATED"), wide=wide)


@app.command("get", epilog=examples("duemq job get ab3kd7m2q9xz", "duemq job get ab3kd7m2q9xz --wait"))
def show(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended or is paused.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a job."""
    with connected(url, as_json) as client:
        job = client.job(job_id)
        if wait:
            raise typer.Exit(wait_for_job(client, job, as_json))
    tell_job(job, as_json)


@app.command("pause", epilog=examples("duemq job pause ab3kd7m2q9xz"))
def pause(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Pause a job until it is resumed."""
    with connected(url, as_json) as client:
        tell_job(client.pause_job(job_id), as_json)


@app.command("resume", epilog=examples("duemq job resume ab3kd7m2q9xz"))
def resume(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Resume a paused job."""
    with connected(url, as_json) as client:
        tell_job(client.resume_job(job_id), as_json)


@app.command("cancel", epilog=examples("duemq job cancel ab3kd7m2q9xz", "duemq job cancel ab3kd7m2q9xz --yes"))
def cancel(job_id: JobId, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """End a job. Changes it has made stay."""
    with connected(url, as_json) as client:
        if must_ask(yes, as_json):
            tell_job(client.job(job_id), as_json)
            confirm("End this job? It cannot be restarted.", yes, as_json)
        tell_job(client.cancel_job(job_id), as_json)
