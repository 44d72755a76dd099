"""Reads each file to import as a whole before it is submitted. One file is read at a time, and a few more may wait."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

from duemq.model.errors import BadDelayFile, OutcomeUnknown, Rejected, Unavailable
from duemq.model.messages.import_command import ImportCommand
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.imports.source import SourceFile
from duemq.storage.jobs.jobs import InspectionFailure, InspectionResult, inspect_answer
from duemq.storage.jobs.parent import Lines, lines_of
from duemq.storage.object_store import is_object

_SILENCE_S: Final = 30.0  # if the reading process is silent for longer, the file's mount must hang
_INSPECT: Final = lines_of("duemq.storage.imports.import_process", _SILENCE_S)
_RETRY_S: Final = 5


class FileChecker:
    """Starts a process for each file, which takes some 150 MB. `most`: how many files may wait while one is being
    read."""

    def __init__(self, most: int = 8, lines: Lines = _INSPECT) -> None:
        self._most, self._lines = most, lines
        self._turn, self._waiting = asyncio.Lock(), 0

    async def inspect(self, path: str, link: bool, policy: ImportPolicy) -> ImportCommand:
        """The import command for a file. Raises Rejected `bad_delay_file`, and Unavailable, also if too many files
        wait."""
        if not is_object(path):  # the process checks whether an object exists
            await asyncio.to_thread(_check_file, path, policy)
        if self._waiting > self._most:
            detail = f"{self._waiting} files are being read or wait for it: send what you know of this one, or wait"
            raise Unavailable(detail, _RETRY_S)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._inspect(path, link, policy)
        except OutcomeUnknown as error:  # reading the file failed: nothing is in the log yet
            raise Unavailable(f"{path} could not be read: {error.detail}", _RETRY_S) from error
        finally:
            self._waiting -= 1

    async def _inspect(self, path: str, link: bool, policy: ImportPolicy) -> ImportCommand:
        job = policy.job(inspect=path)
        async with aclosing(self._lines(job)) as answers:
            async for line in answers:
                match inspect_answer(line):
                    case InspectionResult() as file:
                        return ImportCommand(path, file.sha256, file.size, file.window, file.rows, link)
                    case InspectionFailure(reason=reason, away=True):
                        raise Unavailable(reason, _RETRY_S)
                    case InspectionFailure() as defect:
                        row = {} if defect.row is None else {"row": defect.row}
                        raise Rejected("bad_delay_file", defect.reason, defect.column or "path", **row)
        raise Unavailable(f"{path} could not be read")


def _check_file(path: str, policy: ImportPolicy) -> None:
    """Check that there is a file to read. Blocks."""
    try:
        with SourceFile.open(Path(path), policy.folders):
            pass
    except BadDelayFile as error:
        raise Rejected(error.code, error.detail, "path") from error
