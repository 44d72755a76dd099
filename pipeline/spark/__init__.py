import duemq.pipeline.needs_spark  # noqa: F401
