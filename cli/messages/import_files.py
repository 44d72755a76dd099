"""`duemq import`: schedules Parquet files of messages."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_json
from duemq.cli.progress import Tell, progress
from duemq.cli.session import AsJson, Url, connected, examples

if TYPE_CHECKING:
    from duemq.client import Admin
    from duemq.client.http.values import FileImport

EXAMPLES = examples(
    "duemq import /shared/orders-2026-12-24T1800.parquet",
    "duemq import /shared/campaign/",
    "duemq import --no-wait --json /shared/campaign/ > handed-over.json",
)
_LOOK_S = 0.5


def import_file(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files, or folders with .parquet files in them.")],
    link: Annotated[
        bool, typer.Option("--link", help="The files will not change any more: link them if possible.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all are imported or rejected.")] = True,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Schedule Parquet files of messages, each as a whole and for one 30-minute window.

    The nodes have to see the files under the same paths, below a folder in their setting delay_files.import_from. A
    file is imported once, however often it is submitted. Exit code 7 if one was rejected; the reason names row and
    column.
    """
    files = _files(paths)
    with connected(url, as_json) as client, progress(as_json) as tell:
        imports = []
        try:
            for place, file in enumerate(files, start=1):
                imports.append(_hand_over(client, file, link))
                tell("files submitted", place, len(files))
            if wait:
                imports = _wait_until_imported(client, imports, tell)
        except KeyboardInterrupt:
            so_far = f"{len(imports):,} of {len(files):,} files were submitted and will be imported"
            typer.echo(f"duemq: stopped; {so_far}; run the same command to continue", err=True)
            raise
    raise typer.Exit(_tell(imports, as_json))


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


def _hand_over(client: Admin, file: Path, link: bool) -> FileImport:
    from dataclasses import asdict

    from duemq.model.errors import BadDelayFile
    from duemq.storage.imports.import_file import summary_of

    try:
        metadata = asdict(summary_of(file))
    except BadDelayFile as error:
        raise BadDelayFile(f"{file}: {error}") from error
    return client.import_file(str(file), link=link, **metadata)


def _wait_until_imported(client: Admin, imports: list[FileImport], tell: Tell) -> list[FileImport]:
    """Wait until each file is imported or rejected. Returns their final states, in the same order."""
    ids = {file_import.id: file_import.rows for file_import in imports}
    results: dict[str, FileImport] = {}
    while missing := ids.keys() - results.keys():
        tell("messages imported", sum(ids[id_] for id_ in results), sum(ids.values()))
        still = {file_import.id for file_import in client.imports("pending")}
        for id_ in sorted(missing - still):
            file_import = client.import_record(id_)
            if file_import.state in ("imported", "rejected"):
                results[id_] = file_import
        if missing & still:
            time.sleep(_LOOK_S)
    return [replace(results[file_import.id], duplicate=file_import.duplicate) for file_import in imports]


def _tell(imports: list[FileImport], as_json: bool) -> Exit:
    rejected = [file_import for file_import in imports if file_import.state == "rejected"]
    if as_json:
        echo_json({"imports": [dict(file_import.raw) for file_import in imports]})
    else:
        for file_import in rejected:
            typer.secho(f"{file_import.path}: rejected: {file_import.reason}", fg=typer.colors.RED, err=True)
        imported = [file_import for file_import in imports if file_import.state == "imported"]
        waiting, before = (
            len(imports) - len(imported) - len(rejected),
            sum(file_import.duplicate for file_import in imports),
        )
        typer.echo(
            f"{sum(file_import.rows for file_import in imported):,} messages in {len(imported):,} files imported"
            + (f", {len(rejected):,} files rejected" if rejected else "")
            + (f", {waiting:,} files are being imported" if waiting else "")
            + (f"; {before:,} files had been submitted before" if before else "")
        )
    return Exit.REFUSED if rejected else Exit.DONE
