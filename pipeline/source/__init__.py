"""duemq as a Spark data source: `spark.dataSource.register(DuemqSource)`, then `format("duemq")`."""

from duemq.pipeline.source.data_source import DuemqSource

__all__ = ["DuemqSource"]
