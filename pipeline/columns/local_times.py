"""Reads times without a zone from files as TIMESTAMP_NTZ.

By default Spark guesses: it reads them as TIMESTAMP, in the zone of the session (text) or of Java (ORC). Instants stay
TIMESTAMP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import types as T

from duemq.pipeline.columns.mapping import column
from duemq.pipeline.errors import BadInput
from duemq.pipeline.spark.session import override

_INFER: Final = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
}
_INT96: Final = "spark.sql.parquet.int96AsTimestamp"
PARTITION_TYPES: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
_ZONE_LETTERS: Final = frozenset("VzOXxZ")
_UTC: Final = frozenset({
    "UTC", "Etc/UTC", "UCT", "Etc/UCT", "GMT", "Etc/GMT", "GMT0", "Etc/GMT0", "Z", "Zulu", "Etc/Zulu", "Universal",
    "Etc/Universal", "Greenwich", "Etc/Greenwich",
})  # fmt: skip


def load(spark: SparkSession, reader: DataFrameReader, kind: str, name: str, options: Mapping[str, str]) -> DataFrame:
    """Load files of the format `kind` through a reader with these `options`. Raises BadInput, and Spark's errors."""
    if kind == "orc":
        return _orc(spark, reader, name)
    if kind == "parquet":
        return _parquet(spark, reader, name)
    return reader.schema(text_schema(spark, reader, name, options)).load(name)


def need_java_in_utc(spark: SparkSession, name: str) -> None:
    """Raise BadInput if the Java processes of the tasks that read `name` are not in the zone UTC.

    ORC and database drivers convert local times through Java's zone, which silently changes times that the zone skips.
    For some databases Spark also shifts all times by the zone's offset.
    """
    try:
        (java,) = spark.range(1).selectExpr("reflect('java.time.ZoneId', 'systemDefault')").head() or ("",)
    except (PySparkException, Py4JJavaError) as error:
        raise BadInput(
            f"{name}: it has times without a zone, and in which zone Spark's Java is cannot be seen"
        ) from error
    if java not in _UTC:
        raise BadInput(
            f"{name}: it has times without a zone, which Spark's Java changes, being in the zone {java}: set "
            "-Duser.timezone=UTC in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions"
        )


def _orc(spark: SparkSession, reader: DataFrameReader, name: str) -> DataFrame:
    """Load ORC files. Their local times are read as text: otherwise they would depend on the session's zone."""
    frame = reader.load(name)
    local = [field.name for field in frame.schema if isinstance(field.dataType, T.TimestampType)]
    if not local:
        return frame
    need_java_in_utc(spark, name)
    texts = reader.schema(_replaced(frame.schema, T.TimestampType, T.StringType())).load(name)
    return texts.withColumns({one: column(one).cast("timestamp_ntz") for one in local})


def _parquet(spark: SparkSession, reader: DataFrameReader, name: str) -> DataFrame:
    """Load Parquet. INT96 has no zone: Spark and Hive write instants, Impala local times. Spark marks its own files."""
    with override(spark, _INFER | {_INT96: "false"}):
        try:
            return _pinned(reader, reader.load(name), name)
        except PySparkException as error:
            if "INT96" not in str(error):
                raise
    with override(spark, _INFER | {_INT96: "true"}):
        schema = reader.load(name).schema

    def is_int96(field: T.StructField) -> bool:
        if not isinstance(field.dataType, T.TimestampType):
            return False
        try:  # Spark cannot read INT96, and only INT96, as a whole number
            spark.read.schema(T.StructType([T.StructField(field.name, T.LongType())])).parquet(name).head()
        except (PySparkException, Py4JJavaError) as error:
            if "PARQUET_COLUMN_DATA_TYPE_MISMATCH" in str(error):
                return True
            raise
        return False

    # The reader that is not vectorized does not check types.
    with override(spark, {"spark.sql.parquet.enableVectorizedReader": "true"}):
        fields = [T.StructField(one.name, T.TimestampNTZType() if is_int96(one) else one.dataType) for one in schema]
    return reader.schema(T.StructType(fields)).load(name)


def text_schema(
    spark: SparkSession, reader: DataFrameReader, name: str | list[str], options: Mapping[str, str]
) -> T.StructType:
    """The columns of CSV and JSON, also with `inferSchema` or `inferTimestamp`. Columns from folder names are text."""
    by_name = {option.lower(): value for option, value in options.items()}
    form = by_name.get("timestampformat")
    zoned = form is not None and bool(_ZONE_LETTERS.intersection(_outside_quotes(form)))
    if form is not None and not zoned:
        reader = reader.option("timestampNTZFormat", form)
    with override(spark, _INFER | {PARTITION_TYPES: "false"}):
        frame = reader.load(name)
        # Some values in a TIMESTAMP column have a zone and others may have none: judge each row by its text.
        return frame.schema if zoned else _replaced(frame.schema, T.TimestampType, T.StringType())


def _pinned(reader: DataFrameReader, frame: DataFrame, name: str) -> DataFrame:
    """The frame with its present schema fixed: a Connect session analyzes a frame again at each action, with the
    settings at that moment."""
    schema = frame.schema
    local = _replaced(schema, T.TimestampNTZType, T.StringType()) != schema
    return reader.schema(schema).load(name) if local else frame


def _outside_quotes(form: str) -> str:
    return "".join(form.split("'")[::2])


def _replaced(schema: T.StructType, old: type[T.DataType], new: T.DataType) -> T.StructType:
    """The schema with the type `old` replaced at every level."""

    def of(kind: T.DataType) -> T.DataType:
        if isinstance(kind, T.StructType):
            return _replaced(kind, old, new)
        if isinstance(kind, T.ArrayType):
            return T.ArrayType(of(kind.elementType), kind.containsNull)
        if isinstance(kind, T.MapType):
            return T.MapType(of(kind.keyType), of(kind.valueType), kind.valueContainsNull)
        return new if isinstance(kind, old) else kind

    return T.StructType([T.StructField(one.name, of(one.dataType), one.nullable, one.metadata) for one in schema])
