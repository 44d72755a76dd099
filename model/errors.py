"""Every error that duemq raises, grouped by what the caller must do next.

* `Rejected`: the request is wrong or the answer is no; sending it again changes nothing.
* `Unavailable`: nothing is wrong with the request; try again after a while.
* `OutcomeUnknown`, a kind of `Unavailable`: the request may have been carried out; try again only if doing it twice
  does no harm.
* `Fatal`: the process must not continue with its state. It stops with an error message, and an operator must act.
* `Fenced`: another master has taken over the shard; follow the ledger and the election.

Errors of other libraries (RocksDB, sockets, files) are translated where they occur, and the cause is kept with `from`.
Each error has a `scope`: how far the failure reaches (ADR 55).
"""

from __future__ import annotations

from typing import Any, ClassVar

from duemq.model.scope import FailureScope


class DuemqError(Exception):
    """The base class of all errors. `scope`: what the failure affects; a handler leaves everything else alone."""

    scope: ClassVar[FailureScope] = FailureScope.PROCESS


class Rejected(DuemqError):
    """A request refused with a stable, machine-readable `code` (see `docs/reference/api.md`).

    `field` is the field at fault, if there is one; `extra` are further members of the problem document,
    such as `delivered_at` for `already_delivered`.
    """

    scope = FailureScope.MESSAGE

    def __init__(self, code: str, detail: str, field: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.code, self.detail, self.field, self.extra = code, detail, field, extra


class RejectedNow(Rejected):
    """A request that is well formed, but refused because of the current time, limits or topics.

    The same request may have been accepted before, so a repeat under a name gets the receipt of the message with that
    name.
    """


class BadDelayFile(Rejected):
    """A file that cannot be imported (`docs/guides/delay-files.md`).

    `row`: the first wrong row, counted from 0; None if a whole column or the file is at fault. `missing`: the file does
    not exist or cannot be read, which may change.
    """

    def __init__(
        self, detail: str, row: int | None = None, column: str | None = None, *, missing: bool = False
    ) -> None:
        where = [f"row {row}"] * (row is not None) + [f"column {column}"] * (column is not None)
        sentence = f"{', '.join(where)}: {detail}" if where else detail
        super().__init__("bad_delay_file", sentence, column, **({} if row is None else {"row": row}))
        self.row, self.column, self.missing = row, column, missing


class Unavailable(DuemqError):
    """Temporarily unavailable: 503 with `Retry-After`. Nothing was accepted, and no accepted message is lost."""

    scope = FailureScope.NODE

    code = "unavailable"

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.detail, self.retry_after_s = detail, retry_after_s


class DiskFull(Unavailable):
    """The data disk is above `storage.refuse_percent` or below `storage.min_free_bytes`, or a write failed with
    ENOSPC."""

    code = "disk_full"


class ClockOutOfBounds(Unavailable):
    """This machine's clock differs too much from the brokers' (`node.max_clock_offset_ms`) to compute times from it."""

    code = "clock_out_of_bounds"


class OutcomeUnknown(Unavailable):
    """It is unknown whether the request was accepted or carried out: 504, without `Retry-After`.

    If it is repeated under the same name or Idempotency-Key, it is carried out only once.
    """

    scope = FailureScope.MESSAGE

    code = "outcome_unknown"


class StoreFailed(OutcomeUnknown):
    """A write or a read failed in the store or the log. The outcome is unknown until the store or log is reopened."""

    scope = FailureScope.NODE


class LogFailed(StoreFailed):
    """A shared log refused or did not answer in time: the outcome is unknown. The bus itself keeps running.

    The shard makes a new committer, which ends the old one's transactions, and reads the ledger to its end.
    """

    scope = FailureScope.SHARD


class Fenced(DuemqError):
    """A commit was refused because a newer master of the shard exists."""

    scope = FailureScope.SHARD


class Fatal(DuemqError):
    """Continuing would risk wrong deliveries. The error text says what is wrong and what to do."""


class CorruptStore(Fatal):
    """Data on disk is damaged: a bad checksum, a torn record, a count that does not add up."""

    scope = FailureScope.SHARD


class DamagedFile(CorruptStore):
    """A delay file is missing or damaged. A peer's replica can replace this one.

    `path`: the path of the file.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class FolderRefused(Fatal):
    """The data folder is in use, belongs to something else, or has another format version."""


class Behind(Fatal):
    """The logs no longer reach back to this replica's position: it must be rebuilt from a peer or a backup."""

    scope = FailureScope.SHARD


class ForeignLog(Behind):
    """Another cluster has written to a shard's logs, or they are not the logs that this replica followed."""


class Diverged(Fatal):
    """A replica's own count or checksum differs from the ledger's."""

    scope = FailureScope.SHARD


class BadConfig(Fatal):
    """A setting is wrong. The error text has the setting's key."""


def first_of(error: BaseException) -> BaseException:
    """The first plain exception in a group, at any depth; a plain exception is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
