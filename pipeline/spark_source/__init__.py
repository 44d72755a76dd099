"""duemq as a Spark data source, `format("duemq")`: Spark finds it through `src/pyspark_duemq`."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.spark_source.data_source import DuemqSource

__all__ = ["DuemqSource"]
