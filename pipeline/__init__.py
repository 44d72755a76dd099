"""PySpark jobs over duemq's logs and delay files: bulk schedule, send, bulk cancel and move, audit, forecast, history.

Functions take and return DataFrames and use the caller's session; the jobs around them read and write
(`docs/guides/pipeline.md`). This needs the distribution duemq-spark and Java 17 or newer.
"""
