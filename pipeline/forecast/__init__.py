"""Forecast from the due times of pending messages: load per topic and minute, hot seconds, and how late messages will
be at a measured capacity.

`store.py` and `read.py` read a backup or the data folder of a stopped server; `load.py` counts, from DataFrames to
DataFrames; `capacity.py` finds how many messages a machine can deliver; `page.py` draws.
"""

import duemq.pipeline.needs_spark  # noqa: F401
