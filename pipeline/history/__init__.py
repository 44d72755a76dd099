"""The outcomes of messages in a table that outlives the logs: one row per delivery, and one per outcome from the
ledger.

`rows.py` makes the rows, DataFrame in, DataFrame out; `table.py` is the table on disk; `stream.py` the job that fills
it, exactly once; `examples/history_questions.py` asks it.
"""

import duemq.pipeline.needs_spark  # noqa: F401
