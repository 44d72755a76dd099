"""Pending messages of other systems as the rows that bulk schedule takes, and with the reason what cannot be read."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.migrate.celery import CeleryOptions
from duemq.pipeline.migrate.csv import from_csv
from duemq.pipeline.migrate.rabbitmq import RabbitOptions
from duemq.pipeline.migrate.rocketmq import RocketOptions
from duemq.pipeline.migrate.rows import Imported, divided, from_documents, reject_repeats

__all__ = [
    "CeleryOptions",
    "Imported",
    "RabbitOptions",
    "RocketOptions",
    "divided",
    "from_csv",
    "from_documents",
    "reject_repeats",
]
