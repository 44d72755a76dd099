"""`duemq adopt`: hand over Parquet files of messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_json
from duemq.cli.session import AsJson, Url, connected, examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from duemq.client import Client
    from duemq.client.http.values import Adoption

EXAMPLES = examples(
    "duemq adopt /shared/orders-2026-12-24T1800.parquet",
    "duemq adopt /shared/campaign/",
    "duemq adopt --no-wait --json /shared/campaign/ > handed-over.json",
)
_LOOK_S = 0.5


def adopt(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files, or folders with .parquet files in them.")],
    link: Annotated[
        bool, typer.Option("--link", help="Nobody will change the files: link them where that can be done.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all are adopted or refused.")] = True,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Hand over Parquet files of messages, each of one 30-minute window, to be scheduled as a whole.

    The nodes have to see the files under the same paths, below a folder of their setting far.adopt_from. A file is
    adopted once, however often it is handed over. Exit code 7 if one was refused; the reason names row and column.
    """
    files = _files(paths)
    with connected(url, as_json) as client, _bar(as_json) as told:
        found = [_hand_over(client, file, link, told) for file in files]
        if wait:
            found = _settled(client, found, told)
    raise typer.Exit(_tell(found, as_json))


def _files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith((".", "_")))
            if not inside:
                raise typer.BadParameter(f"{path} has no .parquet files", param_hint="PATH")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise typer.BadParameter(f"there is no file {path}", param_hint="PATH")
    return [file.absolute() for file in files]


@contextmanager
def _bar(as_json: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Tells of so many messages done, and so many more to do."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=as_json) as bar:
        tasks = {name: bar.add_task(name, total=0) for name in ("messages handed over", "messages adopted")}
        totals = dict.fromkeys(tasks, 0)

        def tell(name: str, done: int, more: int = 0) -> None:
            totals[name] += more
            bar.update(tasks[name], advance=done, total=totals[name])

        yield tell


def _hand_over(client: Client, file: Path, link: bool, told: Callable[[str, int, int], None]) -> Adoption:
    from dataclasses import asdict

    from duemq.model.errors import BadDelayFile
    from duemq.storage.imports.importer import glance

    try:
        said = asdict(glance(file))
    except BadDelayFile as error:
        # The server says it again, in the same words, to whoever has no file to look at.
        raise BadDelayFile(f"{file}: {error}") from error
    adoption = client.adopt(str(file), link=link, **said)
    told("messages handed over", said["rows"], said["rows"])
    told("messages adopted", 0, said["rows"])
    return adoption


def _settled(client: Client, found: list[Adoption], told: Callable[[str, int, int], None]) -> list[Adoption]:
    """What became of all of them."""
    ids = dict.fromkeys(adoption.id for adoption in found)
    ended: dict[str, Adoption] = {}
    while missing := ids.keys() - ended.keys():
        still = {adoption.id for adoption in client.adoptions("wanted")}
        for id_ in sorted(missing - still):
            adoption = client.adoption(id_)
            if adoption.state in ("adopted", "refused"):
                ended[id_] = adoption
                told("messages adopted", adoption.rows, 0)
        if missing & still:
            time.sleep(_LOOK_S)
    return [replace(ended[adoption.id], duplicate=adoption.duplicate) for adoption in found]


def _tell(found: list[Adoption], as_json: bool) -> Exit:
    refused = [adoption for adoption in found if adoption.state == "refused"]
    if as_json:
        echo_json({"adoptions": [dict(adoption.raw) for adoption in found]})
    else:
        for adoption in refused:
            typer.secho(f"{adoption.path}: refused: {adoption.reason}", fg=typer.colors.RED, err=True)
        adopted = [adoption for adoption in found if adoption.state == "adopted"]
        waiting, before = len(found) - len(adopted) - len(refused), sum(adoption.duplicate for adoption in found)
        typer.echo(
            f"{sum(adoption.rows for adoption in adopted):,} messages in {len(adopted):,} files adopted"
            + (f", {len(refused):,} files refused" if refused else "")
            + (f", {waiting:,} files are being taken in" if waiting else "")
            + (f"; {before:,} files had been handed over before" if before else "")
        )
    return Exit.REFUSED if refused else Exit.DONE
