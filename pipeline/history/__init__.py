"""What became of messages, kept in a table for later questions: one row per delivery, and one per outcome from the
ledger.

`rows.py` makes the rows, DataFrame in, DataFrame out; `table.py` is the table on disk; `stream.py` the job that fills
it, exactly once; `questions.py` asks it.
"""

import duemq.pipeline.needs_spark  # noqa: F401
