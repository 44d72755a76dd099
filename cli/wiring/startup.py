"""What the commands that start a server share: their options, and how they begin and fail."""

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
    from duemq.cli.systemd.notify import Notifier

log = logging.getLogger(__name__)

Data = Annotated[Path | None, typer.Option(help="Data folder; made if it is not there.", metavar="DIR")]
Listen = Annotated[str | None, typer.Option(help="Where to listen.", metavar="HOST:PORT")]
Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).", metavar="FILE")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
Further = Annotated[
    list[str] | None, typer.Option("--set", help="Any other setting, as section.key=value.", metavar="KEY=VALUE")
]
Kafka = Annotated[str | None, typer.Option(help="Some brokers, with commas between.", metavar="HOST:PORT,...")]
ZooKeeper = Annotated[
    str | None, typer.Option("--zookeeper", help="The servers, with commas between.", metavar="HOST:PORT,...")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes on this machine.")]


def begin(
    config: Path | None, options: dict[str, Any], further: Sequence[str] | None, *, log_level: str | None = None
) -> Settings:
    """The settings in force, the command line's included; from here on there are logs. `log_level`: instead of theirs.

    What is wrong with them is one line and exit code 1.
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
    """The options of a command line as `Settings.load` takes them. `further`: of --set."""
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
    """What this process makes from here on, data folders and backups, is for its user alone."""
    os.umask(0o077)


def become_server(workers: int = 1) -> Notifier:
    """From here on files are made for this user alone, and SIGHUP ends neither this process nor those it starts.

    Returns who tells systemd, also for the processes that are forked after this.
    """
    from duemq.cli.systemd.notify import Notifier

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
    """Run a server to its end; an error that is ours is one line and exit code 1."""
    import asyncio

    import uvloop

    from duemq.model.errors import DuemqError, first_of

    async def unaffected() -> None:
        # The end of a terminal, or the rotation of a log, is no reason to stop.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignore)
        await main

    gc.freeze()  # nearly all there is now was imported, and stays
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
