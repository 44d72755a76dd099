"""Each package of Spark jobs imports this first, so that a missing Spark is reported in one sentence."""

from duemq.model.extras import extra_missing

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise extra_missing(error, "duemq.pipeline", "duemq-spark") from error
