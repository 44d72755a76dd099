"""How this session's Spark reaches S3-compatible stores (`fs.s3a.*`), for code that goes there with its own client."""

from __future__ import annotations

from pyspark.sql import SparkSession

from duemq.storage.object_store import ObjectStore


def store_of(spark: SparkSession, bucket: str) -> ObjectStore:
    """As the settings `spark.hadoop.fs.s3a.*` say, those of the bucket before those of all. What they do not say is for
    the variables, profiles and roles of AWS on each machine."""

    def setting(name: str) -> str:
        of_all = spark.conf.get(f"spark.hadoop.fs.s3a.{name}", "")
        return spark.conf.get(f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", of_all) or ""

    endpoint = setting("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if setting('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    keys = (setting(name) for name in ("access.key", "secret.key", "session.token"))
    return ObjectStore(endpoint, setting("endpoint.region"), *keys)
