"""Starts a bulk job, waits for it, and shows its state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import typer

from duemq.cli.confirmation import confirm
from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_json
from duemq.cli.progress import progress
from duemq.model.printable import escaped

if TYPE_CHECKING:
    from duemq.client import Admin

_LOOK_S: Final = 0.5


def begin_job(
    client: Admin, kind: str, fields: dict[str, Any], what: str, dry_run: bool, wait: bool, yes: bool, as_json: bool
) -> Exit:
    """Start a job, after showing how many of `what` match and asking for confirmation."""
    if dry_run or not yes:
        count = client.begin_job(kind, dry_run=True, **fields)
        if dry_run:
            if as_json:
                echo_json(count)
            else:
                typer.echo(f"{count['total']:,} {what} match.")
            return Exit.DONE
        confirm(f"{kind_text(kind).capitalize()} {count['total']:,} {what}?", yes, as_json)
    job = client.begin_job(kind, **fields)
    if wait:
        return wait_for_job(client, job, as_json)
    tell_job(job, as_json)
    return Exit.DONE


def kind_text(kind: str) -> str:
    """A job's kind in the words of the command line."""
    return {"move": "reschedule", "move-with-expiry": "reschedule with expiry"}.get(kind, kind)


def tell_job(job: dict[str, Any], as_json: bool) -> None:
    """Show a job's state in one line."""
    if as_json:
        echo_json(job)
        return
    counts = [f"{job['done']:,} done", f"{job['skipped']:,} skipped", f"{job['failed']:,} failed"]
    total = "?" if job["total"] is None else f"{job['total']:,}"
    typer.echo(f"{job['id']}  {kind_text(job['kind'])} {job['state']}: {', '.join(counts)} of {total}")
    for what in ("skipped", "failed"):
        for reason, count in job[f"{what}_by_reason"].items():
            typer.echo(f"  {what}: {reason} {count:,}")
    if job["reason"]:
        typer.echo(f"  {escaped(job['reason'])}")


def wait_for_job(client: Admin, job: dict[str, Any], as_json: bool) -> Exit:
    """Wait until the job has ended or is paused, and print the result. The exit code is 1 if the job or a message
    failed."""
    with progress(as_json) as tell:
        try:
            while job["active"]:
                time.sleep(_LOOK_S)
                job = client.job(job["id"])
                ended = job["done"] + job["skipped"] + job["failed"]
                tell(f"{kind_text(job['kind'])} {job['id']}", ended, job["total"])
        except KeyboardInterrupt:
            typer.echo(f"duemq: stopped waiting; the job continues: duemq job get {job['id']} --wait", err=True)
            raise
    tell_job(job, as_json)
    return Exit.ERROR if job["state"] == "failed" or job["failed"] else Exit.DONE
