"""What the pipeline raises. All are DuemqErrors: the commands print them as one line."""

from __future__ import annotations

from duemq.model.errors import DuemqError


class SparkUnavailable(DuemqError):
    """Spark cannot be started: the sentence says what is missing, and how to get it."""


class JobFailed(DuemqError):
    """A job cannot go on. What it has done so far stands as its sentence says, and it can be run again."""


class BadInput(DuemqError):
    """What was given is not what the job can work with: a missing column, a wrong type. Nothing was done."""
