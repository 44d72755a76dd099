"""What a request for a job may ask for; everything else is refused with the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.model.errors import Rejected
from duemq.model.log.job import Order
from duemq.proxy.jobs.order import read_order
from duemq.proxy.request.ingress import Ingress, MessageLimits

NOW = 1_795_200_000_000
ID = "A" * 32
INGRESS = Ingress(MessageLimits(topics=("orders", "orders.*")))


def read(**body: Any) -> Order:
    return read_order(body, INGRESS, NOW).order


def test_what_can_be_asked_for() -> None:
    since = {"dead_from": "2026-11-21T10:00:00Z", "topic": "orders", "reason": "expired"}
    assert read(kind="redrive", filter=since, rate=2000, topic="orders.again") == Order(
        "redrive", since, 2000.0, "orders.again"
    )
    until = {"dead_to": NOW}
    assert read(kind="purge", source="dlq.g", filter=until) == Order("purge", until, source="dlq.g")
    assert read(kind="move", filter={"key": "k"}, deliver_after="1h").due == NOW + 3_600_000
    assert read(kind="move", filter={"key": "k"}, shift="-30m").shift == -1_800_000
    assert read(kind="move", filter={"key": "k"}, shift=500).shift == 500
    by_prefix = {"topic_prefix": "orders.", "name_prefix": "order-1"}
    body = {"kind": "cancel", "filter": by_prefix}
    assert read_order(body, INGRESS, NOW, "shopkey").order == Order("cancel", by_prefix, caller="shopkey")
    home = read_order({"kind": "redrive", "source": "dlq.destination.mail", "ids": ["0:17"]}, INGRESS, NOW)
    assert home.order.topic == "destination.mail", "the topic that it came from has other readers"
    listed = read_order({"kind": "redrive", "ids": [ID, ID], "dry_run": True}, INGRESS, NOW)
    assert (listed.order.filter, listed.ids, listed.dry_run) == ({"ids": 1}, [ID], True)
    assert read_order({"kind": "redrive", "source": "t", "ids": ["0:17"]}, INGRESS, NOW).ids == ["0:17"]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"kind": "delete"}, "bad_field", "kind"), ({"kind": ["redrive"]}, "bad_field", "kind"),
        ({}, "bad_field", "kind"),
        ({"kind": "redrive"}, "bad_field", "filter"), ({"kind": "redrive", "filter": {}}, "bad_field", "filter"),
        ({"kind": "redrive", "filter": {"topic": "orders"}}, "bad_field", "filter"),  # no time
        ({"kind": "cancel", "filter": {}}, "bad_field", "filter"),
        ({"kind": "cancel", "filter": {"dead_from": 5}}, "unknown_field", "filter"),
        ({"kind": "cancel", "filter": {"status": "dead"}}, "unknown_field", "filter"),
        ({"kind": "cancel", "filter": {"topic_prefix": ""}}, "bad_field", "topic_prefix"),
        ({"kind": "cancel", "filter": {"topic_prefix": "orders.*"}}, "bad_field", "topic_prefix"),
        ({"kind": "cancel", "filter": {"name_prefix": 7}}, "bad_field", "name_prefix"),
        ({"kind": "redrive", "source": "dlq.g", "filter": {"dead_from": 5, "name_prefix": "a"}}, "unknown_field",
         "filter"),
        ({"kind": "cancel", "filter": {"key": "k"}, "source": "dlq.g"}, "bad_field", "source"),
        ({"kind": "cancel", "filter": {"key": "k"}, "topic": "orders"}, "bad_field", "topic"),
        ({"kind": "purge", "source": "dlq.g", "filter": {"dead_from": 5}}, "unknown_field", "filter"),
        ({"kind": "purge", "source": "dlq.g", "ids": ["0:1"]}, "bad_field", "ids"),
        ({"kind": "redrive", "filter": {"dead_from": "yesterday"}}, "bad_time", "dead_from"),
        ({"kind": "redrive", "filter": {"dead_from": 5, "reason": 7}}, "bad_field", "reason"),
        ({"kind": "redrive", "filter": {"dead_from": 5, "key": "k" * 1001}}, "bad_field", "key"),
        ({"kind": "redrive", "ids": []}, "bad_field", "ids"),
        ({"kind": "redrive", "ids": ["order-17"]}, "bad_field", "ids"),
        ({"kind": "redrive", "ids": [ID] * 10_001}, "batch_too_large", "ids"),
        ({"kind": "redrive", "ids": [ID], "filter": {"dead_from": 5}}, "bad_field", "filter"),
        ({"kind": "redrive", "source": "dlq.g", "ids": [ID]}, "bad_field", "ids"),
        ({"kind": "redrive", "ids": [ID], "topic": "mail"}, "unknown_topic", "topic"),
        ({"kind": "redrive", "ids": [ID], "topic": "duemq.buffer"}, "bad_topic", "topic"),
        ({"kind": "redrive", "ids": [ID], "rate": 0}, "bad_field", "rate"),
        ({"kind": "redrive", "ids": [ID], "rate": float("nan")}, "bad_field", "rate"),
        ({"kind": "redrive", "ids": [ID], "rate": True}, "bad_field", "rate"),
        ({"kind": "redrive", "ids": [ID], "dry_run": 1}, "bad_field", "dry_run"),
        ({"kind": "redrive", "ids": [ID], "shift": "1h"}, "bad_field", "shift"),
        ({"kind": "move", "ids": [ID]}, "bad_field", "deliver_at"),
        ({"kind": "move", "ids": [ID], "shift": 0}, "bad_time", "shift"),
        ({"kind": "move", "ids": [ID], "shift": "1h", "deliver_after": "1h"}, "both_times", "deliver_at"),
        ({"kind": "redrive", "ids": [ID], "limit": 5}, "unknown_field", "limit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(Rejected) as error:
        read_order(body, INGRESS, NOW)
    assert (error.value.code, error.value.field) == (code, field)
