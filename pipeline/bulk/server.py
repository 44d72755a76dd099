"""Handing the files of a job over to duemq, all or none, and waiting until they are adopted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from duemq.client import Client
from duemq.client.errors import BatchTooLarge, PastDue
from duemq.client.values import Adoption
from duemq.model.fault import Fault, no_fault
from duemq.pipeline.bulk.manifest import Manifest
from duemq.pipeline.bulk.stage import Stage
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.progress import Teller
from duemq.pipeline.server import patiently

_LOOK_S: Final = 0.25
_LISTED: Final = 5  # refused files named in an error


def hand_over(client: Client, manifest: Manifest, stage: Stage, *, link: bool, fault: Fault = no_fault) -> None:
    """Have all files of a job in the log, or none: by one request. Those that are there already are left alone.

    Raises JobFailed where files are missing that were not handed over, Rejected as the server does.
    """
    sums = {one.raw["sha256"] for one in patiently(client.adoptions) if one.state != "refused" and "sha256" in one.raw}
    missing = [file for file in manifest.files if file.sha256 not in sums]
    if not missing:
        return
    there = stage.files(manifest.attempt)
    for file in missing:
        if there.get(file.path) != file.size:
            path = stage.path(file.path)
            raise JobFailed(f"{path} is not there any more, or not as it was written: job {manifest.job} cannot go on")
    said: list[dict[str, str | int]] = [
        {
            "path": stage.path(file.path), "sha256": file.sha256, "size": file.size, "window": file.window,
            "rows": file.rows,
        }
        for file in missing
    ]  # fmt: skip
    fault("before_hand_over")
    try:
        patiently(lambda: client.adopt_all(said, link=link))
    except BatchTooLarge as error:
        raise JobFailed(f"{error.detail}: schedule it as several jobs") from error
    except PastDue as error:
        late = sum(file.rows for file in missing)
        others = "the others are" if len(missing) < len(manifest.files) else "nothing is"
        raise JobFailed(
            f"{error.detail}. {late:,} rows were not handed over in time, {others} "
            f"scheduled: schedule those rows under another job id, with a longer lead ({stage.place} has this one's)"
        ) from error
    fault("handed_over")


def adopted(client: Client, manifest: Manifest, teller: Teller, fault: Fault = no_fault) -> dict[str, str]:
    """Wait until each file is adopted or refused; the id of each one's adoption, by its path.

    Raises JobFailed where some were refused, which says what is scheduled and what is not.
    """
    rows = {file.sha256: file.rows for file in manifest.files}
    fault("waiting")
    while True:
        waiting = {one.raw.get("sha256") for one in patiently(lambda: client.adoptions("wanted"))} & rows.keys()
        teller.share(sum(rows.values()) - sum(rows[one] for one in waiting if one), sum(rows.values()))
        if not waiting:
            found = _by_content(patiently(client.adoptions))
            if rows.keys() <= found.keys():
                break
        time.sleep(_LOOK_S)
    refused = [file for file in manifest.files if found[file.sha256].state == "refused"]
    if refused:
        lost = sum(file.rows for file in refused)
        reasons = "; ".join(f"{file.path}: {found[file.sha256].reason}" for file in refused[:_LISTED])
        raise JobFailed(
            f"the server refused {len(refused):,} of {len(manifest.files):,} files of job {manifest.job}: {lost:,} of "
            f"{manifest.accepted:,} rows are not scheduled, the others are ({reasons}). What can be mended is "
            "handed over by running the job again"
        )
    return {file.path: found[file.sha256].id for file in manifest.files}


def _by_content(adoptions: Iterable[Adoption]) -> dict[str, Adoption]:
    """The one that counts of each content: a refused one may have come again."""
    found: dict[str, Adoption] = {}
    for one in adoptions:
        sha256 = one.raw.get("sha256")
        if sha256 is not None and (sha256 not in found or found[sha256].state == "refused"):
            found[sha256] = one
    return found
