"""Cancel and move messages in bulk: by a join with any table, through the command log, with an answer for each row."""

from duemq.pipeline.bulk_change.job import STATUSES, mass_cancel, mass_move
from duemq.pipeline.bulk_change.messages import Targets
from duemq.pipeline.bulk_change.requests import Server

__all__ = ["STATUSES", "Server", "Targets", "mass_cancel", "mass_move"]
