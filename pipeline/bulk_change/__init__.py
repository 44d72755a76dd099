"""Cancel and move messages in bulk: by a join with any table, through the command log, with an answer for each row."""

from duemq.pipeline.bulk_change.asking import Server
from duemq.pipeline.bulk_change.changing import STATUSES, mass_cancel, mass_move
from duemq.pipeline.bulk_change.targets import Targets

__all__ = ["STATUSES", "Server", "Targets", "mass_cancel", "mass_move"]
