"""Celery tasks with an eta that wait in duemq. Needs a running duemq and a Redis. See docs/guides/celery.md.

pip install 'duemq[celery]' 'celery[redis]'
duemq destination add celery redis://127.0.0.1:6379/0 --topic celery --option envelope=celery
celery -A celery_app worker
python celery_app.py
"""

import os
import time

from celery import Celery

from duemq.client.celery import install

redis = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("celery_app", broker=redis, backend=redis)
install(app)  # url=..., or DUEMQ_URL; by default http://127.0.0.1:8787


@app.task
def remind(order: int, due: float) -> str:
    return f"order {order} is reminded of, {round((time.time() - due) * 1000)} ms after its time"


@app.task(bind=True, max_retries=3)
def unlucky(self, order: int) -> str:
    if self.request.retries < 2:
        raise self.retry(countdown=2)  # waits in duemq, too
    return f"order {order} went through at the third try"


def main() -> None:
    soon = remind.apply_async((1, time.time() + 3), countdown=3)
    never = remind.apply_async((2, time.time() + 3600), countdown=3600)
    retried = unlucky.delay(3)

    never.revoke()
    print("the second:", never.state)
    print("the first:", soon.get(timeout=30))
    print("the third:", retried.get(timeout=30))

    with app.duemq.batch():  # several times as fast as one by one
        for order in range(1000):
            remind.apply_async((order, time.time() + 86_400), countdown=86_400)
    print("a thousand more are held until tomorrow")


if __name__ == "__main__":
    main()
