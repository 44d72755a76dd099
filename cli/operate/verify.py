"""`duemq verify`: checks the data folder of a stopped server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq verify
    duemq verify --data /var/lib/duemq --json

Stop the server first: only one process can have a folder open. Exit code 0: all checks passed; 1: one did not.
"""


def verify(
    data: Annotated[Path | None, typer.Option(help="Data folder (default: as `duemq serve`).", metavar="DIR")] = None,
    config: startup.Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check that store, wheel, ledger and logs of a data folder agree, and that every message has exactly one
    outcome."""
    import asyncio

    from duemq.cli.settings.settings import Settings
    from duemq.model.errors import DuemqError

    startup.keep_private()
    try:
        settings = Settings.load(config, {"data": data})
        good = asyncio.run(_verify(settings.data, json))
    except DuemqError as error:
        startup.fail(error)
    raise typer.Exit(0 if good else 1)


async def _verify(path: Path, json: bool) -> bool:
    import dataclasses

    import orjson
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn
    from rich.table import Table

    from duemq.bus.embedded.bus import EmbeddedBus
    from duemq.delay.recovery.verify import verify as run
    from duemq.storage.data_folder import Folder, read_info
    from duemq.storage.rocksdb import Memory

    read_info(path)
    folder = Folder.open(path)
    try:
        bus = await EmbeddedBus.open(path / "bus")
        try:
            columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:,.0f} rows"))
            with Progress(*columns, console=Console(stderr=True), transient=True, disable=json) as bar:
                tasks: dict[str, object] = {}

                def progress(what: str, rows: int) -> None:
                    if what not in tasks:
                        tasks[what] = bar.add_task(what, total=None)
                    bar.update(tasks[what], completed=rows)  # type: ignore[arg-type]

                checks = await run(folder, bus, Memory(64 << 20, 64 << 20), progress)
        finally:
            await bus.close()
    finally:
        folder.close()
    good = all(check.good for check in checks)
    if json:
        document = {"data": str(path), "good": good, "checks": [dataclasses.asdict(check) for check in checks]}
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return good
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "detail"):
        table.add_column(column)
    for check in checks:
        table.add_row("[green]ok[/green]" if check.good else "[red]WRONG[/red]", check.what, check.detail)
    console = Console()
    console.print(table)
    console.print(f"{path}: " + ("all is well" if good else "[red]something is wrong[/red]"))
    return good
