"""`duemq spark`. Modules named here are imported by `duemq spark --help`: they import Spark inside their functions."""

from __future__ import annotations

import typer

from duemq.pipeline.cli import audit

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Schedule in bulk, audit, forecast and more, with PySpark.",
)


@app.callback()
def spark() -> None:
    """Schedule in bulk, audit, forecast and more, with PySpark (extra [bold]duemq\\[spark][/bold]; docs/pipeline.md).

    On this machine's cores, unless --master or spark-submit says otherwise.
    """


app.command(epilog=audit.EXAMPLES)(audit.audit)
