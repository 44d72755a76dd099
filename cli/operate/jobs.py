"""`duemq job begin`, `ls`, `get`, `pause`, `resume` and `cancel`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from duemq.cli.confirmation import Yes, confirm, must_ask
from duemq.cli.job_progress import begin_job, tell_job, wait_for_job
from duemq.cli.messages import pending
from duemq.cli.messages.pending import DueFrom, DueTo, Key, Label, NamePrefix, Topic, TopicPrefix
from duemq.cli.output import echo_json, echo_table
from duemq.cli.session import AsJson, Url, Zone, connected, duration, examples, when

app = typer.Typer(help="Begin, list, pause, resume and cancel bulk jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `duemq job ls` lists it.")]


@app.command(
    "begin",
    epilog=examples(
        "duemq job begin cancel --topic orders --label reminder --dry-run",
        "duemq job begin move --topic orders --shift 2h --rate 2000 --wait",
        "duemq job begin deliver-now --key order-17 --yes",
    ),
)
def begin(
    kind: Annotated[
        Literal["cancel", "move", "move-with-expiry", "deliver-now"],
        typer.Argument(help="What becomes of the messages."),
    ],
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    at: Annotated[str | None, typer.Option(help="Of a move: to this time.")] = None,
    after: Annotated[str | None, typer.Option(help="Of a move: to so long after now.")] = None,
    zone: Zone = None,
    shift: Annotated[str | None, typer.Option(help="Of a move: each by so much, such as 2h or -30m.")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages per second; without it as fast as it goes.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and do nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job, with a bar.")] = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel, move or deliver now all pending messages that match, each once, also where processes are killed.

    Dead letters: `duemq dlq redrive` and `purge`.
    """
    chosen = pending.filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix)
    given = {"shift": duration(shift, "--shift"), "rate": rate, **when(after, at, None, zone)}
    fields = {"filter": chosen} | {name: value for name, value in given.items() if value is not None}
    with connected(url, as_json) as client:
        raise typer.Exit(begin_job(client, kind, fields, "messages", dry_run, wait, yes, as_json))


@app.command("ls", epilog=examples("duemq job ls", "duemq job ls --json | jq -r '.jobs[].state'"))
def list_jobs(url: Url = None, as_json: AsJson = False) -> None:
    """List the bulk jobs that are known, the newest first."""
    with connected(url, as_json) as client:
        jobs = client.jobs()
    if as_json:
        echo_json({"jobs": jobs})
        return
    rows = [
        (job["id"], job["kind"], job["state"], "?" if job["total"] is None else str(job["total"]), str(job["done"]),
         str(job["skipped"]), str(job["failed"]), job["created_at"], job["by"])
        for job in jobs
    ]  # fmt: skip
    echo_table(("ID", "KIND", "STATE", "TOTAL", "DONE", "SKIPPED", "FAILED", "CREATED", "BY"), rows)


@app.command("get", epilog=examples("duemq job get ab3kd7m2q9xz", "duemq job get ab3kd7m2q9xz --wait"))
def show(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended or is paused.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands."""
    with connected(url, as_json) as client:
        job = client.job(job_id)
        if wait:
            raise typer.Exit(wait_for_job(client, job, as_json))
    tell_job(job, as_json)


@app.command("pause", epilog=examples("duemq job pause ab3kd7m2q9xz"))
def pause(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Pause a job, until it is resumed."""
    with connected(url, as_json) as client:
        tell_job(client.pause_job(job_id), as_json)


@app.command("resume", epilog=examples("duemq job resume ab3kd7m2q9xz"))
def resume(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Let a paused job go on."""
    with connected(url, as_json) as client:
        tell_job(client.resume_job(job_id), as_json)


@app.command("cancel", epilog=examples("duemq job cancel ab3kd7m2q9xz", "duemq job cancel ab3kd7m2q9xz --yes"))
def cancel(job_id: JobId, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """End a job. What it has done stays done."""
    with connected(url, as_json) as client:
        if must_ask(yes, as_json):
            tell_job(client.job(job_id), as_json)
            confirm("End this job? It cannot be begun again.", yes, as_json)
        tell_job(client.cancel_job(job_id), as_json)
