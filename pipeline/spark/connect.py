"""Spark Connect sessions: their driver runs elsewhere, so they have no `sparkContext` and no JVM."""

from __future__ import annotations

from pyspark.sql import SparkSession

from duemq.pipeline.errors import SparkUnavailable

SCHEME = "sc://"


def is_remote(spark: SparkSession) -> bool:
    """Whether this is a Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def remote_session(name: str, url: str, settings: dict[str, str]) -> SparkSession:
    """A session at `sc://HOST:PORT`, without the `settings` that a client may not set. Raises SparkUnavailable."""
    try:
        builder = SparkSession.builder.remote(url).appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        spark.version  # noqa: B018  the first request to the server
    except ImportError as error:  # pyspark raises a subclass for each missing package
        raise SparkUnavailable(f"{url} needs pyspark[connect]: {str(error).splitlines()[0]}") from error
    except Exception as error:
        raise SparkUnavailable(
            f"{url} does not answer as a Spark Connect server: {str(error).splitlines()[0]}"
        ) from error
    return spark
