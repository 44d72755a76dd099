"""What a destination that names a stream may say, and which outlet it has."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.model.destinations.destination import Credentials, Destination, read_destination
from duemq.model.errors import Rejected
from duemq.relay.outlets import RelayPolicy, open_outlet
from duemq.relay.rabbitmq.outlet import RabbitMqOutlet
from duemq.relay.rabbitmq.stream.outlet import StreamOutlet


def destination(options: dict[str, Any], url: str = "amqp://rabbit.example/") -> Destination:
    return read_destination({"name": "shop", "url": url, "options": options})


@pytest.mark.parametrize(
    ("options", "url", "port"),
    [
        ({"stream": "orders"}, "amqp://rabbit.example:5672/", 5552),
        ({"stream": "orders"}, "amqps://rabbit.example/", 5551),
        ({"stream": "orders", "stream_port": 7}, "amqp://rabbit.example/", 7),
    ],
)
def test_the_port_of_the_stream_protocol(options: dict[str, Any], url: str, port: int) -> None:
    outlet = open_outlet(destination(options, url), Credentials(), RelayPolicy())
    assert isinstance(outlet, StreamOutlet)
    assert outlet._place == ("rabbit.example", port)


def test_a_declaration_is_read_again_as_it_was_written() -> None:
    declared = destination({"stream": "orders"})
    assert Destination.model_validate(declared.value()) == declared


def test_without_a_stream_it_is_amqp() -> None:
    assert isinstance(open_outlet(destination({"exchange": "shop"}), Credentials(), RelayPolicy()), RabbitMqOutlet)


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"stream": "orders", "exchange": "shop"}, "options.stream", "with it there is no exchange"),
        ({"stream": "orders", "mandatory": False}, "options.stream", "with it there is no mandatory"),
        ({"stream_port": 5552}, "options.stream_port", "it goes with stream"),
        ({"stream": "orders", "stream_port": 65_536}, "options.stream_port", "65,535"),
        ({"stream": "orders", "stream_port": "5552"}, "options.stream_port", "whole number"),
        ({"stream": "bestellungen für"}, "options.stream", "visible ASCII"),
        ({"stream": "x" * 256}, "options.stream", "255"),
    ],
)
def test_what_it_may_not_say(options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(Rejected, match=words) as refused:
        destination(options)
    assert refused.value.field == field
