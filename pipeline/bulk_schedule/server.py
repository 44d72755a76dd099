"""Hands the files of a job over to duemq, all or none, and waits until they are imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from duemq.client import Admin
from duemq.client.http.errors import BatchTooLarge, PastDue
from duemq.client.http.values import FileImport
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule.files import WrittenFile
from duemq.pipeline.bulk_schedule.manifest import JobFolder, JobManifest
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.logs.server import patiently
from duemq.pipeline.spark.progress import Teller

_LEAST_S: Final = 0.25  # the shortest pause between two requests for the state of the import
_MAX_S: Final = 5.0
_SHARE: Final = 0.05  # the pause between two requests, as a share of the time waited so far
_AGAIN_S: Final = 2.0  # a pause until replicas have applied the commands before a refused request
_LISTED: Final = 5  # refused files listed in an error
_CLOCKS_MS: Final = 120_000  # the largest expected difference between the clocks of two nodes


def hand_over(
    client: Admin,
    manifest: JobManifest,
    folder: JobFolder,
    *,
    link: bool,
    failpoint: Failpoint = no_failpoint,
    clock: Callable[[], int] = lambda: int(time.time() * 1000),
) -> frozenset[str]:
    """Put all files of a job into the log in one request, or none of them. Files that are in the log are skipped;
    refused files are handed over again. `clock`: the server's.

    Returns the paths of files that were handed over earlier, but whose imports the server has forgotten, as it does
    some time after their windows. Raises Rejected, and JobFailed if no file was handed over, or if it is no longer
    known whether any was.
    """
    imports = _imports(client, folder)
    missing = [file for file in manifest.files if not _is_in(imports, file)]
    if missing and (folder.handed_at() is not None or any(_may_be_forgotten(file, clock()) for file in missing)):
        imports = _imports(client)  # the stage may have had another path earlier
        missing = [file for file in manifest.files if not _is_in(imports, file)]
    if not missing:
        folder.record_hand_over(clock())
        failpoint("handed_over")
        return frozenset()
    over = [file for file in missing if file.sha256 not in imports and _may_be_forgotten(file, clock())]
    handed_at = folder.handed_at()
    # All files of a job enter the log together: if the server knows one of them, it has received all of them.
    if handed_at is not None or any(file.sha256 in imports for file in manifest.files):
        _give(client, manifest, [file for file in missing if file not in over], folder, link, failpoint)
        folder.record_hand_over(clock())
        failpoint("handed_over")
        return frozenset(file.path for file in over)
    if len(over) == len(manifest.files):
        raise JobFailed(
            f"the windows of job {manifest.job} have passed, and the server no longer keeps its imports: whether its "
            f"{manifest.accepted:,} rows were scheduled is unknown. Check their topics first: scheduling them again "
            "might send them twice"
        )
    _give(client, manifest, missing, folder, link, failpoint)
    failpoint("accepted")
    folder.record_hand_over(clock())
    failpoint("handed_over")
    return frozenset()


def _give(
    client: Admin,
    manifest: JobManifest,
    missing: list[WrittenFile],
    folder: JobFolder,
    link: bool,
    failpoint: Failpoint,
) -> None:
    if not missing:
        return
    there = folder.stage.files("")
    for file in missing:
        if there.get(file.path) != file.size:
            path = folder.stage.path(file.path)
            raise JobFailed(f"{path} is gone or was changed: job {manifest.job} cannot go on")
    entries: list[dict[str, str | int]] = [
        {
            "path": folder.stage.path(file.path), "sha256": file.sha256, "size": file.size, "window": file.window,
            "rows": file.rows,
        }
        for file in missing
    ]  # fmt: skip
    failpoint("before_hand_over")
    try:
        patiently(lambda: client.import_files(entries, link=link))
    except BatchTooLarge as error:
        raise JobFailed(f"{error.detail}: schedule it as several jobs") from error
    except PastDue as error:
        # The same request may have succeeded before, and its answer may have been lost.
        time.sleep(_AGAIN_S)
        imports = _imports(client)
        if all(_is_in(imports, file) for file in missing):
            return
        late = sum(file.rows for file in missing)
        if len(missing) == len(manifest.files):
            raise JobFailed(
                f"{error.detail}. {late:,} rows were not handed over in time, nothing is scheduled: schedule them "
                f"under another job id, with a longer lead ({folder.stage.place} has this one's)"
            ) from error
        raise JobFailed(
            f"{error.detail}. {late:,} of {manifest.accepted:,} rows of job {manifest.job} are not scheduled, and it "
            f"is too late for their files; the others are ({_some(missing)} in {folder.stage.place})"
        ) from error


def imported(
    client: Admin,
    manifest: JobManifest,
    folder: JobFolder,
    teller: Teller,
    forgotten: frozenset[str] = frozenset(),
    failpoint: Failpoint = no_failpoint,
) -> dict[str, str | None]:
    """Wait until each file is imported or refused. Returns the id of each import by the path of its file, and None for
    `forgotten` files.

    Raises JobFailed if files were refused; the error has the numbers of rows that are and are not scheduled.
    """
    files = [file for file in manifest.files if file.path not in forgotten]
    failpoint("waiting")
    since = time.monotonic()
    while True:
        # Ask only for the number: this is cheap, however many files each node has to import.
        waiting = patiently(lambda: client.count_imports("pending", _below(folder)))
        teller.share(max(len(files) - waiting, 0), len(files))
        if not waiting:
            imports = _imports(client, folder)
            if any(file.sha256 not in imports for file in files):
                imports = _imports(client)
            end_flags = [
                imports[file.sha256].state in ("imported", "rejected") for file in files if file.sha256 in imports
            ]
            if len(end_flags) == len(files) and all(end_flags):
                break
        time.sleep(min(max(_SHARE * (time.monotonic() - since), _LEAST_S), _MAX_S))
    refused = [file for file in files if imports[file.sha256].state == "rejected"]
    if refused:
        lost = sum(file.rows for file in refused)
        reasons = _some(refused, {file.path: imports[file.sha256].reason for file in refused})
        raise JobFailed(
            f"the server refused {len(refused):,} of {len(manifest.files):,} files of job {manifest.job}: {lost:,} of "
            f"{manifest.accepted:,} rows are not scheduled, the others are ({reasons}). Run the job again to hand over "
            "files that can be repaired"
        )
    return {file.path: None if file.path in forgotten else imports[file.sha256].id for file in manifest.files}


def _some(files: Sequence[WrittenFile], reasons: Mapping[str, str] | None = None) -> str:
    """The first few files, by path."""
    named = [f"{file.path}: {reasons[file.path]}" if reasons else file.path for file in files[:_LISTED]]
    return ("; " if reasons else ", ").join(named) + (", and more" if len(files) > _LISTED else "")


def shown(ms: int) -> str:
    """A time (epoch ms) as text."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _is_in(imports: Mapping[str, FileImport], file: WrittenFile) -> bool:
    file_import = imports.get(file.sha256)
    return file_import is not None and file_import.state != "rejected"


def _may_be_forgotten(file: WrittenFile, now: int) -> bool:
    return file.window + WINDOW_MS <= now + _CLOCKS_MS


def _below(folder: JobFolder) -> str:
    return f"{folder.stage.path('').rstrip('/')}/"


def _imports(client: Admin, folder: JobFolder | None = None) -> dict[str, FileImport]:
    """The imports of a job, or of all jobs, by the files' content. An import replaces an earlier refusal."""
    imports = patiently(lambda: client.imports(below="" if folder is None else _below(folder)))
    by_sha256: dict[str, FileImport] = {}
    for one in imports:
        sha256 = one.raw.get("sha256")
        if sha256 is not None and (sha256 not in by_sha256 or by_sha256[sha256].state == "rejected"):
            by_sha256[sha256] = one
    return by_sha256
