"""The command line: `python -m duemq.bench.spark NAME [OPTIONS]`."""

from __future__ import annotations

import typer

from duemq.bench.spark import audit, change, files, schedule, send

app = typer.Typer(no_args_is_help=True, help="Measure the pipeline.")


@app.callback()
def bench() -> None:
    """Measure the pipeline on this machine."""


app.command("schedule")(schedule.schedule)
app.command("files")(files.files)
app.command("audit")(audit.audit)
app.command("gone")(audit.missing_files)
app.command("mass")(change.mass)
app.command("send")(send.send)

if __name__ == "__main__":
    app()
