"""`duemq serve`: everything in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = """Examples:

    duemq serve
    duemq serve --data /var/lib/duemq --listen 0.0.0.0:8787
    duemq serve --config duemq.toml --set limits.max_delay=1y --set storage.history_retention=6h
    DUEMQ_HTTP__API_KEYS=secret1,secret2 duemq serve
"""


def serve(
    data: Annotated[Path | None, typer.Option(help="Data folder; made if it is not there.", metavar="DIR")] = None,
    listen: Annotated[str | None, typer.Option(help="Where to listen.", metavar="HOST:PORT")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).", metavar="FILE")] = None,
    shards: Annotated[int | None, typer.Option(help="Shards of a new data folder.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    settings_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, as section.key=value.", metavar="KEY=VALUE")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a short live demonstration, then go on serving.")] = False,
) -> None:
    """Run duemq in one process on the embedded bus: HTTP API, delivery and storage."""
    import asyncio

    import uvloop

    from duemq.model.errors import DuemqError, first_of
    from duemq.proxy import demo as demonstration
    from duemq.proxy.config import Settings
    from duemq.proxy.logs import set_up
    from duemq.proxy.service import serve as run

    given: dict[str, Any] = {
        "data": data, "listen": listen, "shards": shards, "log_level": log_level, "log_format": log_format,
    }  # fmt: skip
    for text in settings_ or ():
        key, equals, value = text.partition("=")
        section, dot, name = key.partition(".")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        if dot:
            given.setdefault(section, {})[name] = value
        else:
            given[key] = value
    try:
        settings = Settings.load(config, given)
        set_up("warning" if demo and log_level is None else settings.log_level, settings.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, demonstration.show if demo else None))
    except DuemqError as error:
        _fail(error)
    except BaseExceptionGroup as group:
        known = group.subgroup(DuemqError)
        if known is None:
            raise
        _fail(first_of(known))


def _fail(error: BaseException) -> None:
    print(f"duemq: {error}", file=sys.stderr)
    raise typer.Exit(1)
