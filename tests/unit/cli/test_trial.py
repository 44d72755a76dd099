"""The test message to a destination."""

from __future__ import annotations

import asyncio

import pytest

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.relay.relay_of_process import outlet_opener
from duemq.cli.wiring.relay.trial import send_test
from duemq.model.destinations.destination import Credentials, read_destination
from duemq.model.errors import Rejected
from duemq.relay import outlets
from duemq.relay.base import Reply, Result
from duemq.relay.memory import MemoryOutlet

SHOP = read_destination({"name": "shop", "url": "nats://n", "timeout": 50})


def test_it_is_a_message_of_the_destinations_own_topic_with_a_mark() -> None:
    outlet = MemoryOutlet()
    reply = asyncio.run(send_test(SHOP, Credentials(), lambda *_: outlet))
    (message,) = outlet.messages
    assert (message.topic, message.headers, message.attempt) == ("destination.shop", [("x-duemq-test", b"1")], 1)
    assert message.id.startswith("test-") and message.due_ms and message.json["destination"] == "shop"
    assert (reply.result, reply.status, reply.detail) == ("accepted", "ok", "") and reply.took_ms >= 0
    assert outlet.closed


def test_what_the_other_side_says_is_the_reply() -> None:
    outlet = MemoryOutlet(lambda message: Reply(Result.FAILED, "500", "x" * 900))
    reply = asyncio.run(send_test(SHOP, Credentials(), lambda *_: outlet))
    assert (reply.result, reply.status, reply.detail, outlet.closed) == ("failed", "500", "x" * 500, True)


def test_it_ends_with_the_time_out_of_the_destination() -> None:
    outlet = MemoryOutlet(delay_s=3_600)
    reply = asyncio.run(send_test(SHOP, Credentials(), lambda *_: outlet))
    assert (reply.result, reply.status, outlet.closed, outlet.in_flight) == ("away", "timeout", True, 0)


def test_a_client_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(outlets._MODULES, SHOP.system, ("missing_library", "Outlet"))
    with pytest.raises(Rejected, match=r"pip install 'duemq\[nats\]'") as error:
        outlet_opener(Settings())(SHOP, Credentials())
    assert error.value.code == "not_supported"
