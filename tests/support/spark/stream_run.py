"""One run of a query that writes deliveries to Parquet, as a process that can be killed in the middle of a batch.

    python -m tests.support.spark.stream_run URL TOPIC FOLDER

FOLDER gets `sink` and `checkpoint`. The tasks of a batch wait with their first rows, once FOLDER has the file `hold`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from duemq.pipeline.spark.session import running

MOST = 500  # records in a batch
SETTINGS = {
    "spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
}  # fmt: skip


def main(url: str, topic: str, folder: str) -> None:
    def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            while (Path(folder) / "hold").exists():
                time.sleep(0.02)

    with running("stream run", master="local[2]", settings=SETTINGS) as spark:
        options = {"url": url, "what": "deliveries", "topic": topic, "page": "100"}
        stream = spark.readStream.format("duemq").options(
            **options, startingOffsets="earliest", maxRecordsPerBatch=str(MOST)
        )  # fmt: skip
        read = stream.load().select("id", "payload", "partition", "offset")
        query = (
            read.mapInArrow(held_up, read.schema).writeStream.format("parquet").option("path", f"file://{folder}/sink")
            .option("checkpointLocation", f"file://{folder}/checkpoint").trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
