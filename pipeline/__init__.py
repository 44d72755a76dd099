"""PySpark over duemq's logs and delay files: schedule in bulk, audit, forecast, history, mass cancel, import.

Functions take and give DataFrames, and neither make sessions nor read the clock; what reads and writes is at the edges
(`docs/guides/pipeline.md`). Needs the distribution duemq-spark and a Java of 17 or newer.
"""
