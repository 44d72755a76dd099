"""`duemq spark`. Modules named here are imported by `duemq spark --help`: they import Spark inside their functions."""

from __future__ import annotations

import typer

from duemq.pipeline.cli import check, imports, mass

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


app.command("check", epilog=check.CHECK_EXAMPLES)(check.check)
app.command("script", epilog=check.SCRIPT_EXAMPLES)(check.script)
app.command("cancel", epilog=mass.CANCEL_EXAMPLES)(mass.cancel)
app.command("move", epilog=mass.MOVE_EXAMPLES)(mass.move)
app.add_typer(imports.app, name="import")
