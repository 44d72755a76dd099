"""One run of a query that sends a stream, as a separate process which can be killed in the middle of a batch.

    python -m tests.support.spark.send_run MASTER TABLE FOLDER BOOTSTRAP

TABLE has files of rows with their number in `part`: each is a batch. FOLDER gets the checkpoint. After the first rows
of a file its task waits until the file `open-PART` exists; the rows before it go to Kafka at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from duemq.pipeline.columns import Columns
from duemq.pipeline.send import send_stream
from duemq.pipeline.spark.session import running

ROWS_PASSED = 2_500  # of a file, before its task waits: more than Python keeps in its buffers
_BATCH = 500
SETTINGS = {
    "spark.driver.memory": "700m", "spark.executor.memory": "500m", "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2", "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH),
}  # fmt: skip
COLUMNS = Columns("due", "text", to="orders", key="key", name="name")
SCHEMA = "due bigint, key string, text string, name string, part int"


def main(master: str, table: str, folder: str, bootstrap: str) -> None:
    def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            gate = Path(folder) / f"open-{batch['part'][0].as_py()}"
            while number >= ROWS_PASSED // _BATCH and not gate.exists():
                time.sleep(0.02)
            yield batch

    with running("send run", kafka=True, master=master, settings=SETTINGS) as spark:
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"file://{table}")
        query = send_stream(
            files.mapInArrow(held_up, SCHEMA),
            COLUMNS,
            bootstrap,
            f"file://{folder}/checkpoint",
            rejects=None,
            once=True,
        )
        query.awaitTermination()
        print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
