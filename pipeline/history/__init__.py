"""The history: a table that outlives the logs, with a row for each delivery and each outcome in the ledger.

`rows.py` makes the rows, DataFrame in, DataFrame out; `table.py` is the table on disk; `stream.py` is the job that
fills the table, exactly once; `examples/history_questions.py` queries it.
"""

import duemq.pipeline.needs_spark  # noqa: F401
