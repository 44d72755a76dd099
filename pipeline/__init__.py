"""PySpark over duemq's logs and delay files: schedule in bulk, audit, forecast, history, mass cancel, import.

Functions take and return DataFrames and use the caller's session; the jobs at the edges read and write
(`docs/guides/pipeline.md`). Needs the distribution duemq-spark and Java 17 or newer.
"""
