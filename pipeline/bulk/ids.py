"""The ids of a job's messages, made by the server when they are asked for, beside what joins them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.client import Client
from duemq.pipeline.bulk.files import uri
from duemq.pipeline.bulk.manifest import Manifest
from duemq.pipeline.bulk.server import Server
from duemq.storage.exchange import MOST_ROWS

_MOST: Final = 10_000  # ids per request
SCHEMA: Final = "id string, name string, topic string, key binary, due_ms bigint, file string, row bigint"
_FILE: Final = T.StructType([
    T.StructField("due_ms", T.LongType()), T.StructField("topic", T.StringType()),
    T.StructField("key", T.BinaryType()), T.StructField("name", T.StringType()),
])  # fmt: skip


def ids(
    spark: SparkSession, manifest: Manifest, folder: Path, adoptions: Mapping[str, str], server: Server
) -> DataFrame:
    """One row per message: `id, name, topic, key, due_ms, file, row`. Lazy: the job's files are read, and the server
    asked for their ids, when it is used, which has to be before their windows are due. `name` is null where none is
    mapped; `file` is a path below the job's folder and `row` counts from 0."""
    if not manifest.files:
        return spark.createDataFrame([], SCHEMA)
    root, known = str(folder), dict(adoptions)

    def with_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with server.client() as client:
            for batch in batches:
                for part in _of_one_file(batch):
                    yield _with_ids(client, part, root, known)

    files = [uri(folder / file.path) for file in manifest.files]
    place = F.col("_metadata.file_path").alias("file"), F.col("_metadata.row_index").alias("row")
    read = spark.read.schema(_FILE).parquet(*files).select("name", "topic", "key", "due_ms", *place)
    return read.mapInArrow(with_ids, SCHEMA)


def _of_one_file(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts whose rows follow one another in one file."""
    if not batch.num_rows:
        return
    codes = pc.dictionary_encode(batch["file"]).indices.to_numpy()
    rows = batch["row"].to_numpy()
    cuts = np.flatnonzero((np.diff(codes) != 0) | (np.diff(rows) != 1)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), batch.num_rows], strict=True):
        yield batch[start:end]


def _with_ids(client: Client, part: pa.RecordBatch, root: str, known: Mapping[str, str]) -> pa.RecordBatch:
    uri = part["file"][0].as_py()
    path = str(Path(unquote(urlparse(uri).path)).relative_to(root))
    first, found = part["row"][0].as_py(), list[str]()
    assert first + part.num_rows <= MOST_ROWS
    while len(found) < part.num_rows:
        more = client.adopted_ids(known[path], first + len(found), min(_MOST, part.num_rows - len(found)))
        if not more:
            raise ValueError(f"{path} has more rows than the file that was adopted")
        found += more
    columns = [
        pa.array(found, pa.string()), part["name"], part["topic"], part["key"], part["due_ms"],
        pa.array([path] * part.num_rows, pa.string()), part["row"],
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=["id", "name", "topic", "key", "due_ms", "file", "row"])
