"""The data source that Spark is given."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from duemq.pipeline.errors import BadInput
from duemq.pipeline.spark_source.fields import check
from duemq.pipeline.spark_source.listing import SCHEMA, Lister
from duemq.pipeline.spark_source.options import reading, writing
from duemq.pipeline.spark_source.posting import MessageWriter, StreamWriter

T = TypeVar("T")


class DuemqSource(DataSource):
    """`spark.read.format("duemq")`: messages that are pending or ended, and dead letters. `df.write.format("duemq")`
    and `df.writeStream.format("duemq")`: rows become messages. docs/pipeline/spark_source.md has the options.

    Executors need duemq, and have to reach the server.
    """

    @classmethod
    def name(cls) -> str:
        return "duemq"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> Lister:
        known = {(field.name, field.dataType): at for at, field in enumerate(SCHEMA)}
        columns = [known.get((field.name, field.dataType)) for field in schema]
        if None in columns:
            raise BadInput(f"a schema has some of these columns: {SCHEMA.simpleString()}")
        return Lister(reading(self.options), [at for at in columns if at is not None])

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        check(schema)
        return MessageWriter(writing(_appending(overwrite, self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        check(schema)
        return StreamWriter(writing(_appending(overwrite, self.options), stream=True))


def _appending(overwrite: bool, options: T) -> T:
    if overwrite:
        raise BadInput("messages cannot be overwritten: say mode('append')")
    return options
