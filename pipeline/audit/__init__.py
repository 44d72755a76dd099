"""The audit: every message that was accepted is delivered, cancelled, moved on, dead or pending, by what the logs say.

    window.py      per shard, what part of its history is read, and whether its ledger entries fit together
    changes.py     what cancels, moves and deferrals did to messages: one row per message
    imported.py     the messages of imported files
    outcomes.py       one row per message: what the ledger says, and what the topics show
    sums.py        which messages need a look at all, where there are many
    violations.py  where these contradict each other
    checks/        what else is looked for: answers, names, places, letters, checksums, ids that senders hold
    lateness.py    how late records came, by topic, shard and hour
    read.py        the edge: which offsets are read, in which order
    job.py         all of it, written as tables and a report (report.py, charts.py)

A message is known by shard, offset and row of the command that made it, which its id says. All functions but those of
`read.py`, `imported.py` and `job.py` take and give DataFrames and values.
"""

import duemq.pipeline.needs_spark  # noqa: F401
