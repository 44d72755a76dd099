"""Shared by the commands that start a server: their options, how they start, and how they fail."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from duemq.cli.settings.settings import Settings
    from duemq.cli.systemd.notifier import Notifier

log = logging.getLogger(__name__)

Data = Annotated[Path | None, typer.Option(help="Data folder; created if missing.", metavar="DIR")]
Listen = Annotated[str | None, typer.Option(help="Address to listen on.", metavar="HOST:PORT")]
Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).", metavar="FILE")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
Further = Annotated[
    list[str] | None, typer.Option("--set", help="Any other setting, as section.key=value.", metavar="KEY=VALUE")
]
Kafka = Annotated[str | None, typer.Option(help="Some brokers, separated by commas.", metavar="HOST:PORT,...")]
ZooKeeper = Annotated[
    str | None, typer.Option("--zookeeper", help="The servers, separated by commas.", metavar="HOST:PORT,...")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes on this machine.")]


def begin(
    config: Path | None, options: dict[str, Any], further: Sequence[str] | None, *, log_level: str | None = None
) -> Settings:
    """The effective settings, including the command line's. Also starts logging. `log_level` overrides the setting.

    Invalid settings end the process with one line and exit code 1.
    """
    from duemq.cli.settings.settings import Settings
    from duemq.cli.wiring.log_format import set_up
    from duemq.model.errors import DuemqError

    try:
        settings = Settings.load(config, nested_options(options, further))
        set_up(log_level or settings.log_level, settings.log_format)
    except DuemqError as error:
        fail(error)
    for sentence in settings.strange_variables():
        log.warning("%s", sentence, extra={"action": "settings"})
    return settings


def nested_options(options: dict[str, Any], further: Sequence[str] | None) -> dict[str, Any]:
    """The options on a command line, in the form that `Settings.load` needs. `further`: the values of --set."""
    nested: dict[str, Any] = {}
    for key, value in options.items():
        _put(nested, key, value)
    for text in further or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        _put(nested, key, value)
    return nested


def keep_private() -> None:
    """Make the files that this process creates from now on (data folders and backups) private to its user."""
    os.umask(0o077)


def become_server(workers: int = 1) -> Notifier:
    """Make files created from now on private to this user, and ignore SIGHUP in this process and its children.

    Returns systemd's notifier, which processes that are forked later use, too.
    """
    from duemq.cli.systemd.notifier import Notifier

    keep_private()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Notifier.of(os.environ, workers)


def _put(nested: dict[str, Any], key: str, value: Any) -> None:
    section, dot, name = key.partition(".")
    if dot:
        nested.setdefault(section, {})[name] = value
    else:
        nested[key] = value


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end. A duemq error ends the process with one line and exit code 1."""
    import asyncio

    import uvloop

    from duemq.model.errors import DuemqError, first_of

    async def unaffected() -> None:
        # Closing a terminal, or a log rotation, must not stop the server.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignore)
        await main

    gc.freeze()  # nearly all objects so far come from imports, and are never freed
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(unaffected())
    except DuemqError as error:
        fail(error)
    except BaseExceptionGroup as group:
        own_errors = group.subgroup(DuemqError)
        if own_errors is None:
            raise
        fail(first_of(own_errors))


def _ignore() -> None:
    log.warning("SIGHUP is ignored: settings are read at the start, logs go to stderr", extra={"action": "signal"})


def fail(error: BaseException) -> NoReturn:
    print(f"duemq: {error}", file=sys.stderr)
    raise typer.Exit(1)
