"""The pipeline's errors. All of them are DuemqErrors, which the commands print as one line."""

from __future__ import annotations

from duemq.model.errors import DuemqError


class SparkUnavailable(DuemqError):
    """Spark cannot be started. The sentence names the missing part and how to get it."""


class JobFailed(DuemqError):
    """A job cannot go on. The sentence says which work is done; the job can be run again."""


class RowsRejected(JobFailed):
    """A strict job has rejected rows: nothing is scheduled or sent."""


class Stopped(DuemqError):
    """The job was stopped by Ctrl-C. The sentence says how to continue."""


class BadInput(DuemqError):
    """The input cannot be used: a missing column, a wrong type. Nothing was done."""
