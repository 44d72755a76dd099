"""Cancels orders that are not paid in time, over HTTP, without Kafka or an extra.

    pip install duemq
    python order_timeouts.py

Needs a running duemq: `make run`, or `duemq serve`. Set DUEMQ_URL if it is not at http://127.0.0.1:8787. The program
places four orders that must be paid within three seconds. One is paid in time, and one too late. A fifth time-out
cannot be parsed by any worker. See docs/guides/sdk.md.
"""

import time
from datetime import timedelta

from duemq.client import AlreadyDelivered, Client, Record

RUN = f"{time.time_ns():x}"
TOPIC, REFUSED, WORKER = f"order-timeouts-{RUN}", f"order-timeouts-refused-{RUN}", "shop"
TRIES = 3

open_orders: dict[str, int] = {}  # the shop's unpaid orders, with their amounts in cents
cancelled_orders: set[str] = set()


def place(client: Client, order: str, cents: int) -> None:
    """Place an order. The name makes it one time-out, however often this is repeated, and `pay` uses it to cancel."""
    open_orders[order] = cents
    client.send(TOPIC, {"order": order}, key=order, name=f"timeout-{order}-{RUN}", if_new=False, deliver_after="3s")


def pay(client: Client, order: str) -> None:
    """Take the money, but only after a successful cancel, which means that the time-out will not come."""
    try:
        client.cancel(f"timeout-{order}-{RUN}")
    except AlreadyDelivered as late:
        print(f"{order}: too late, its time-out came at {late.delivered_at}; no money is taken")
    else:
        del open_orders[order]
        print(f"{order}: paid in time")


def time_out(record: Record) -> None:
    """Cancel an order. This is idempotent: a worker that ends before its commit gets the record again."""
    order = record.json()["order"]
    if open_orders.pop(order, None) is not None:
        cancelled_orders.add(order)
        print(f"{order}: cancelled, {record.lateness_ms} ms after it was due")


def work(client: Client, count: int) -> None:
    """Run one process per consumer name. An unhandled error ends the loop, and the next run begins with that record."""
    for done, record in enumerate(client.tail(TOPIC, consumer=WORKER), 1):
        for attempt in range(1, TRIES + 1):
            try:
                time_out(record)
                break
            except Exception as error:
                print(f"record {record.offset}, attempt {attempt}: {error!r}")
                time.sleep(0.1 * attempt)
        else:  # a poison message: set it aside, under its id, so that the others are processed
            client.send(REFUSED, record.payload, key=record.key, idempotency_key=f"refused-{record.id}")
        client.commit(TOPIC, WORKER, record.cursor or "")
        if done == count:
            return


with Client() as client:
    for number in range(1, 5):
        place(client, f"order-{number}", 1999)
    client.send(TOPIC, "not JSON", deliver_after="3s")
    pay(client, "order-1")
    work(client, count=4)  # order-2, order-3, order-4, and the one that cannot be parsed
    pay(client, "order-2")
    refused = client.records(REFUSED, wait=timedelta(seconds=10)).records
    print(f"{len(cancelled_orders)} orders cancelled, {len(refused)} record set aside in {REFUSED}")
