"""`duemq spark`. Its `--help` imports the modules below, so these import Spark only inside their functions."""

from __future__ import annotations

import typer

from duemq.pipeline.cli import audit, bulk_change, check, forecast, history, schedule, send

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Schedule in bulk, audit, forecast and more, with PySpark.",
)


@app.callback()
def spark() -> None:
    """Schedule in bulk, audit, forecast and more, with PySpark (docs/guides/pipeline.md).

    On this machine's cores, unless --master or spark-submit says otherwise.
    """


app.command("schedule", epilog=schedule.EXAMPLES)(schedule.schedule)
app.command("send", epilog=send.EXAMPLES)(send.send)
app.command("cancel", epilog=bulk_change.CANCEL_EXAMPLES)(bulk_change.cancel)
app.command("move", epilog=bulk_change.MOVE_EXAMPLES)(bulk_change.move)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("forecast", epilog=forecast.EXAMPLES)(forecast.forecast)
app.command("history", epilog=history.EXAMPLES)(history.history)
app.command("check", epilog=check.CHECK_EXAMPLES)(check.check)
app.command("script", epilog=check.SCRIPT_EXAMPLES)(check.script)
