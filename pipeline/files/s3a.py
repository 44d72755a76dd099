"""The session's settings for S3-compatible stores (`fs.s3a.*`), for code that does not use Spark's client."""

from __future__ import annotations

from pyspark.sql import SparkSession

from duemq.storage.object_store import ObjectStore


def store_of(spark: SparkSession, bucket: str) -> ObjectStore:
    """The settings `spark.hadoop.fs.s3a.*`; settings for this bucket override them. Clients take missing settings from
    the AWS variables, profiles and roles of each machine."""

    def setting(name: str) -> str:
        of_all = spark.conf.get(f"spark.hadoop.fs.s3a.{name}", "")
        return spark.conf.get(f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", of_all) or ""

    endpoint = setting("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if setting('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    keys = (setting(name) for name in ("access.key", "secret.key", "session.token"))
    return ObjectStore(endpoint, setting("endpoint.region"), *keys)
