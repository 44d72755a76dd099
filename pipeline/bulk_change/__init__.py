"""Bulk change: cancels or moves the messages that a table refers to, through the command log, with answers per row."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.bulk_change.job import STATUSES, ChangeResult, Targets, cancel, move
from duemq.pipeline.bulk_change.requests import ChangeClient

__all__ = ["STATUSES", "ChangeClient", "ChangeResult", "Targets", "cancel", "move"]
