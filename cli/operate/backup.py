"""`duemq backup` and `duemq restore`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_fields, echo_json, echo_table, size_text
from duemq.cli.progress import progress
from duemq.cli.session import AsJson, examples, failure
from duemq.cli.wiring import startup
from duemq.model.errors import DuemqError, FolderRefused

if TYPE_CHECKING:
    from duemq.storage.backup.backup import Backup
    from duemq.storage.backup.backups import NewBackup

EXAMPLES = examples(
    "duemq backup /backup/duemq", "duemq backup /backup/duemq --data /var/lib/duemq --keep 14 --json | jq -r .backup"
)
RESTORE_EXAMPLES = examples(
    "duemq restore /backup/duemq/20261121T100000.000Z --data /var/lib/duemq && duemq serve --data /var/lib/duemq",
    "duemq restore /backup/duemq/20261121T100000.000Z --check",
)

_NICE = 10  # deliveries have priority


def backup(
    into: Annotated[Path, typer.Argument(metavar="INTO", help="A folder of backups; created if missing.")],
    data: Annotated[Path | None, typer.Option(help="Data folder (default: as `duemq serve`).", metavar="DIR")] = None,
    config: startup.Config = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Then remove the oldest ones beyond this number.")] = None,
    as_json: AsJson = False,
) -> None:
    """Back up a data folder into a new folder below INTO, whether a server is running on it or not.

    Files of the previous backup are linked, not copied; each backup is complete, and can be removed with rm -r. It
    contains the secret of the ids, and every payload. Run it as the server's user.
    """
    os.nice(_NICE)
    startup.keep_private()
    from duemq.cli.settings.settings import Settings
    from duemq.storage.backup.backups import Backups
    from duemq.storage.data_folder import read_info

    now = time.time_ns() // 1_000_000  # messages accepted from now on need not be in the backup
    try:
        settings = Settings.load(config, {"data": data})
        info = read_info(settings.data)
        if into.resolve().is_relative_to(settings.data.resolve()):
            raise FolderRefused(f"{into} is inside of the data folder: choose another one, preferably on another disk")
        with Backups(into) as backups:
            with _at_rest(settings.data) as path, progress(as_json, in_bytes=True) as tell:
                result = backups.make(info, path, now, partial(tell, "backed up"))
            removed = backups.keep(keep) if keep else []
    except DuemqError as error:
        raise failure(error, as_json) from error
    if as_json:
        echo_json(_describe(result.path, result.backup) | _link_counts(result) | {"removed": removed})
        return
    total, linked = result.backup.total_bytes, result.linked_bytes
    _show(
        result.backup,
        {
            "backup": str(result.path),
            "files": f"{len(result.backup.files)}, {result.linked_files} of them linked",
            "size": f"{size_text(total)}, {size_text(total - linked)} of them new",
            "removed": removed,
        },
    )


def restore(
    path: Annotated[Path, typer.Argument(metavar="BACKUP", help="One backup: a folder that `duemq backup` made.")],
    data: Annotated[
        Path | None, typer.Option(help="Data folder: new, or empty (default: as `duemq serve`).", metavar="DIR")
    ] = None,
    config: startup.Config = None,
    check: Annotated[bool, typer.Option("--check", help="Only read the backup, and report damage.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup to a data folder, verifying every checksum; then start the server on it.

    An interrupted restore continues when it is run again. Never run the original and the copy side by side: both
    deliver.
    """
    from duemq.cli.settings.settings import Settings
    from duemq.storage.backup import backup as backups
    from duemq.storage.backup.restore import restore as put_in_place

    startup.keep_private()
    wrong: list[str] = []
    try:
        if check:
            with progress(as_json, in_bytes=True) as tell:
                manifest, wrong = backups.check(path, partial(tell, "checked"))
        else:
            settings = Settings.load(config, {"data": data})
            with progress(as_json, in_bytes=True) as tell:
                manifest = put_in_place(path, settings.data, partial(tell, "restored"))
    except DuemqError as error:
        raise failure(error, as_json) from error
    place = {} if check else {"data": str(settings.data)}
    if as_json:
        echo_json(_describe(path, manifest) | place | ({"wrong": wrong} if check else {}))
    else:
        for sentence in wrong:
            typer.secho(f"duemq: {sentence}", err=True, fg=typer.colors.RED)
        _show(
            manifest,
            {"backup": str(path), **place, "files": len(manifest.files), "size": size_text(manifest.total_bytes)},
        )
        if check:
            typer.echo("something is wrong" if wrong else "all is well")
    raise typer.Exit(Exit.ERROR if wrong else Exit.DONE)


@contextmanager
def _at_rest(data: Path) -> Iterator[Path]:
    """The folder to copy from: a copy made by the server that runs on it, or the folder itself."""
    from duemq.delay.api.control_socket import server_snapshot
    from duemq.storage.data_folder import Folder

    with server_snapshot(data) as path:
        if path is not None:
            yield path
            return
    folder = Folder.open(data)
    try:
        yield data
    finally:
        folder.close()


def _describe(path: Path, manifest: Backup) -> dict[str, Any]:
    from duemq.model.messages.key import due_of

    shards = [
        {
            "shard": shard.shard, "entry": shard.entry, "applied": shard.applied, "cursor": shard.cursor.hex(),
            "cursor_ms": due_of(shard.cursor), "pending": shard.pending,
        }
        for shard in manifest.shards
    ]  # fmt: skip
    return {
        "backup": str(path), "made_at_ms": manifest.made_at, "cluster": manifest.cluster, "files": len(manifest.files),
        "bytes": manifest.total_bytes, "shards": shards,
    }  # fmt: skip


def _link_counts(result: NewBackup) -> dict[str, int]:
    return {"linked_files": result.linked_files, "linked_bytes": result.linked_bytes}


def _show(manifest: Backup, fields: dict[str, Any]) -> None:
    from duemq.model.messages.key import due_of
    from duemq.model.timing import format_ms

    def time_of(cursor: bytes) -> str:
        return format_ms(due_of(cursor)) if due_of(cursor) else "-"

    echo_fields({**fields, "made at": format_ms(manifest.made_at)})
    columns = ("SHARD", "PENDING", "LAST ENTRY", "APPLIED BELOW", "DELIVERED UP TO")
    if not sys.stdout.isatty():
        typer.echo("\t".join(columns))  # the heading separates the rows from the lines before
    echo_table(
        columns,
        (
            (str(shard.shard), str(shard.pending), str(shard.entry), str(shard.applied), time_of(shard.cursor))
            for shard in manifest.shards
        ),
    )
