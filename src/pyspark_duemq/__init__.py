"""Spark takes the `DefaultSource` of modules named `pyspark_*`: `format("duemq")` needs no registration."""

from contextlib import suppress

with suppress(ImportError):  # without PySpark; an error here would end the search for all other sources, too
    from duemq.pipeline.spark_source import DuemqSource as DefaultSource

    __all__ = ["DefaultSource"]
