"""Does the work for each key only once: `once`, and its stores. See docs/guides/idempotency.md."""

from duemq.model.extras import extra_missing

try:
    from duemq.client.idempotency.base import Begun, Busy, Done, Fresh, InDoubt, NothingHappened, Running, Store
    from duemq.client.idempotency.memory import MemoryStore
    from duemq.client.idempotency.once import once
    from duemq.client.idempotency.redis import RedisStore
    from duemq.client.idempotency.rocks import RocksStore
except ModuleNotFoundError as error:
    raise extra_missing(error, __name__, "duemq[consumer]") from error

__all__ = [
    "Begun",
    "Busy",
    "Done",
    "Fresh",
    "InDoubt",
    "MemoryStore",
    "NothingHappened",
    "RedisStore",
    "RocksStore",
    "Running",
    "Store",
    "once",
]
