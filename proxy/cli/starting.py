"""What the commands that start a server share: their options, and how they begin and fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from duemq.proxy.config import Settings

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

Main = Callable[["Settings"], Coroutine[Any, Any, None]]


def settings_of(config: Path | None, given: dict[str, Any], further: Sequence[str] | None) -> Settings:
    """The settings in force, the command line's included. Raises BadConfig."""
    from duemq.proxy.config import Settings

    nested: dict[str, Any] = {}
    for key, value in given.items():
        _put(nested, key, value)
    for text in further or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        _put(nested, key, value)
    return Settings.load(config, nested)


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

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    except DuemqError as error:
        fail(error)
    except BaseExceptionGroup as group:
        known = group.subgroup(DuemqError)
        if known is None:
            raise
        fail(first_of(known))


def fail(error: BaseException) -> None:
    print(f"duemq: {error}", file=sys.stderr)
    raise typer.Exit(1)
