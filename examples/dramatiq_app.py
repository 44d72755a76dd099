"""Dramatiq messages with a delay that wait in duemq. Needs a running duemq and a Redis. See docs/guides/dramatiq.md.

pip install 'duemq[dramatiq]' 'dramatiq[redis]'
duemq destination add dramatiq redis://127.0.0.1:6379/0 --topic dramatiq --option envelope=dramatiq
dramatiq dramatiq_app
python dramatiq_app.py
"""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from duemq.client.dramatiq import install

broker = RedisBroker(url=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))
install(broker)  # url=..., or DUEMQ_URL; by default http://127.0.0.1:8787
dramatiq.set_broker(broker)


@dramatiq.actor(min_backoff=2000, max_retries=3)
def remind(order: int, due: float) -> None:
    print(f"order {order} is reminded of, {round((time.time() - due) * 1000)} ms after its time", flush=True)


if __name__ == "__main__":
    remind.send_with_options(args=(1, time.time() + 3), delay=3000)
    never = remind.send_with_options(args=(2, time.time() + 3600), delay=3_600_000)
    won = broker.duemq.cancel([never.message_id])
    print("the second will not run:", never.message_id in won)
