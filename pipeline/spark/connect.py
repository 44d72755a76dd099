"""Spark Connect: sessions whose driver is elsewhere, so that nothing here may ask for a context or a JVM."""

from __future__ import annotations

from pyspark.sql import SparkSession

from duemq.pipeline.errors import SparkUnavailable

SCHEME = "sc://"


def is_remote(spark: SparkSession) -> bool:
    """Whether its driver is behind a Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def remote_session(name: str, url: str, settings: dict[str, str]) -> SparkSession:
    """A session at `sc://HOST:PORT`. What can be set there is for the server to say: the rest of `settings` is passed
    over. Raises SparkUnavailable."""
    try:
        builder = SparkSession.builder.remote(url).appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        spark.version  # noqa: B018  the first question to the server
    except ImportError as error:  # pyspark raises one of its own for each package that is missing
        raise SparkUnavailable(f"{url} needs pyspark[connect]: {str(error).splitlines()[0]}") from error
    except Exception as error:
        raise SparkUnavailable(
            f"{url} does not answer as a Spark Connect server: {str(error).splitlines()[0]}"
        ) from error
    return spark
