"""duemq as a Spark data source: `spark.dataSource.register(DuemqSource)`, then `format("duemq")`."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.source.data_source import DuemqSource

__all__ = ["DuemqSource"]
