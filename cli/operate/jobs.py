"""`duemq jobs ls`, `show`, `pause`, `resume` and `cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.job_progress import tell_job, wait_for_job
from duemq.cli.output import echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples

app = typer.Typer(help="List, pause, resume and cancel bulk jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `duemq jobs ls` lists it.")]


@app.command("ls", epilog=examples("duemq jobs ls", "duemq jobs ls --json | jq -r '.jobs[].state'"))
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


@app.command("show", epilog=examples("duemq jobs show ab3kd7m2q9xz", "duemq jobs show ab3kd7m2q9xz --wait"))
def show(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nobody works on it any more.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands."""
    with connected(url, as_json) as client:
        job = client.job(job_id)
        if wait:
            raise typer.Exit(wait_for_job(client, job, as_json))
    tell_job(job, as_json)


@app.command("pause", epilog=examples("duemq jobs pause ab3kd7m2q9xz"))
def pause(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Pause a job, until it is resumed."""
    with connected(url, as_json) as client:
        tell_job(client.pause_job(job_id), as_json)


@app.command("resume", epilog=examples("duemq jobs resume ab3kd7m2q9xz"))
def resume(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Let a paused job go on."""
    with connected(url, as_json) as client:
        tell_job(client.resume_job(job_id), as_json)


@app.command("cancel", epilog=examples("duemq jobs cancel ab3kd7m2q9xz"))
def cancel(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """End a job. What it has done stays done."""
    with connected(url, as_json) as client:
        tell_job(client.cancel_job(job_id), as_json)
