"""Pending messages of other systems as the rows that bulk schedule takes, and with the reason what cannot be read."""

from duemq.pipeline.imports.celery import CeleryOptions
from duemq.pipeline.imports.csv import from_csv
from duemq.pipeline.imports.rabbitmq import RabbitOptions
from duemq.pipeline.imports.rocketmq import RocketOptions
from duemq.pipeline.imports.rows import Imported, divided, from_documents, settled

__all__ = [
    "CeleryOptions",
    "Imported",
    "RabbitOptions",
    "RocketOptions",
    "divided",
    "from_csv",
    "from_documents",
    "settled",
]
