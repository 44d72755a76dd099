"""Which kind of stage a path or URI is."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from duemq.pipeline.bulk_schedule.object_stage import ObjectStage
from duemq.pipeline.bulk_schedule.stage import FolderStage, Stage
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import local_path, scheme_of, uri_of

_OF_S3 = ("s3a", "s3")


def stage_of(spark: SparkSession, place: str | Path, job: str) -> Stage:
    """The stage of a job below a folder or `s3a://BUCKET/PREFIX`. Nothing is made there yet. Raises BadInput."""
    uri = uri_of(place)
    if (folder := local_path(uri)) is not None:
        return FolderStage(folder / job)
    if (scheme := scheme_of(uri)) in _OF_S3:
        return ObjectStage.of(spark, uri, job)
    raise BadInput(
        f"{place} cannot be a stage: nodes take no files in from {scheme}:. It must be a folder that driver, executors "
        "and nodes see under one path, or s3a://BUCKET/PREFIX. Without either: duemq spark send, "
        "docs/guides/pipeline/send.md"
    )
