"""The data source that is registered with Spark."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from duemq.pipeline.errors import BadInput
from duemq.pipeline.spark_source.deliveries import SCHEMA as DELIVERY
from duemq.pipeline.spark_source.deliveries import Deliveries, DeliveryTable
from duemq.pipeline.spark_source.fields import check
from duemq.pipeline.spark_source.listing import SCHEMA as MESSAGE
from duemq.pipeline.spark_source.listing import Lister
from duemq.pipeline.spark_source.options import DELIVERIES, reading, reading_deliveries, writing
from duemq.pipeline.spark_source.posting import MessageWriter, StreamWriter

T = TypeVar("T")


class DuemqSource(DataSource):
    """`spark.read.format("duemq")` reads messages that are pending or ended, dead letters, and deliveries.
    `spark.readStream.format("duemq")` reads deliveries. With `df.write.format("duemq")` and
    `df.writeStream.format("duemq")`, rows become messages. docs/guides/pipeline/spark_source.md describes the options.

    Executors need duemq, and have to reach the server.
    """

    @classmethod
    def name(cls) -> str:
        return "duemq"

    def schema(self) -> StructType:
        return DELIVERY if self._of_deliveries else MESSAGE

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self._of_deliveries:
            return Lister(reading(self.options), _columns(schema, MESSAGE))
        _columns(schema, DELIVERY)
        return DeliveryTable(Deliveries(reading_deliveries(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        read = reading_deliveries(self.options, stream=True)
        _columns(schema, DELIVERY)
        try:
            from duemq.pipeline.spark_source.delivery_stream import DeliveryStream
        except ImportError as error:
            raise BadInput("readStream needs Spark 4.2 or later") from error
        return DeliveryStream(Deliveries(read, schema))

    @property
    def _of_deliveries(self) -> bool:
        return self.options.get("what") == DELIVERIES

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        check(schema)
        return MessageWriter(writing(_appending(overwrite, self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        check(schema)
        return StreamWriter(writing(_appending(overwrite, self.options), stream=True))


def _columns(schema: StructType, of: StructType) -> list[int]:
    """The positions in `of` of the columns of a schema. Raises BadInput."""
    known = {(field.name, field.dataType): at for at, field in enumerate(of)}
    columns = [known.get((field.name, field.dataType)) for field in schema]
    if None in columns:
        raise BadInput(f"a schema has some of these columns: {of.simpleString()}")
    return [at for at in columns if at is not None]


def _appending(overwrite: bool, options: T) -> T:
    if overwrite:
        raise BadInput("messages cannot be overwritten: say mode('append')")
    return options
