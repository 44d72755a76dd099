"""Due times of pending messages: load per topic and minute, hot seconds, and how late a measured capacity would be.

`store.py` and `read.py` read a data folder at rest or a backup; `load.py` counts, DataFrame in, DataFrame out;
`capacity.py` says what a machine can deliver; `page.py` draws.
"""

import duemq.pipeline.needs_spark  # noqa: F401
