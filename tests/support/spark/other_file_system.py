"""A file system other than `file:`, for the tests of paths: Hadoop's viewfs over a folder of this machine."""

from __future__ import annotations

import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark.java import hadoop_settings_of


def other_file_system(spark: SparkSession, folder: Path) -> str:
    """Make the folder; a URI that leads there, and that only Hadoop understands."""
    folder.mkdir()
    name = f"mount-{uuid.uuid4().hex}"
    hadoop_settings_of(spark).set(f"fs.viewfs.mounttable.{name}.link./out", folder.as_uri())
    return f"viewfs://{name}/out"
