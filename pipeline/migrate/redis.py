"""Celery's messages out of a Redis or Valkey: read on the driver, and nothing is changed there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from duemq.model.errors import DuemqError
from duemq.pipeline.errors import BadInput, JobFailed

PRIORITIES: Final = (0, 3, 6, 9)  # kombu keeps a list for each of these steps of a queue
_SEPARATOR: Final = "\x06\x16"
_PAGE: Final = 1_000


def read_redis(spark: SparkSession, url: str, queues: Sequence[str] = ("celery",), prefix: str = "") -> DataFrame:
    """`source` and `value` of each message: those that workers hold unacknowledged, and those of the queues.

    `prefix`: the `global_keyprefix` of the app's transport. Raises BadInput for a URL that is none, JobFailed where the
    server does not answer.
    """
    messages = list(_messages(url, queues, prefix))
    table = pa.table({"source": pa.array([one[0] for one in messages], pa.string()),
                      "value": pa.array([one[1] for one in messages], pa.string())})  # fmt: skip
    return spark.createDataFrame(cast(Any, table))


def _messages(url: str, queues: Sequence[str], prefix: str) -> Iterator[tuple[str, str]]:
    try:
        import redis
    except ImportError as error:
        raise DuemqError("reading a Redis needs redis-py: install the extra `duemq[redis]`") from error
    try:
        connection = redis.Redis.from_url(url)
    except ValueError as error:
        raise BadInput(f"{url} is not the URL of a Redis: {error}") from error
    with connection:
        try:
            unacked = f"{prefix}unacked"
            each = iter(connection.hscan_iter(unacked, count=_PAGE))
            while page := list(islice(each, _PAGE)):
                yield from ((f"{unacked}/{_text(tag)}", _text(value)) for tag, value in page)
            for queue in queues:
                for step in PRIORITIES:
                    name = f"{prefix}{queue}" + (f"{_SEPARATOR}{step}" if step else "")
                    shown = f"{prefix}{queue}" + (f" (priority {step})" if step else "")
                    for start in range(0, connection.llen(name), _PAGE):
                        values = cast(list[bytes], connection.lrange(name, start, start + _PAGE - 1))
                        yield from ((f"{shown}[{start + at}]", _text(value)) for at, value in enumerate(values))
        except redis.RedisError as error:
            raise JobFailed(f"the Redis does not answer: {error}") from error


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
