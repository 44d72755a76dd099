"""The options about columns, which commands share: what they make, and that no command has others."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer

from duemq.pipeline.cli.bulk_change import move
from duemq.pipeline.cli.columns import columns_of
from duemq.pipeline.cli.schedule import schedule
from duemq.pipeline.cli.send import send
from duemq.pipeline.columns import Columns

NONE: dict[str, Any] = {"due": "due", "unit": "ms"} | dict.fromkeys(
    ("payload", "payload_base64", "topic", "to", "key", "headers", "labels", "expires", "name", "zone")
)


def test_columns_have_the_names_of_their_options_by_default() -> None:
    assert columns_of(**NONE) == Columns("due", "payload", topic="topic", header_prefix="header.")


def test_each_option_says_what_it_says() -> None:
    said: dict[str, Any] = {
        "due": "at", "payload": "a,b", "to": "orders", "key": "k", "headers": "x=y,z=w", "labels": "l,m",
        "expires": "until", "name": "n", "order": "o,p", "zone": "Europe/Berlin", "unit": "s",
    }  # fmt: skip
    assert columns_of(**NONE | said) == Columns(
        "at", ("a", "b"), to="orders", key="k", headers={"x": "y", "z": "w"}, labels=("l", "m"), expires="until",
        name="n", order=("o", "p"), zone="Europe/Berlin", unit="s", header_prefix="header.",
    )  # fmt: skip
    found = columns_of(**NONE | {"payload_base64": "body", "topic": "queue", "headers": "meta", "labels": "tags"})
    assert found == Columns(
        "due", "body", topic="queue", headers="meta", labels="tags", payload_base64=True, header_prefix="header."
    )


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="use only one of them"):
        columns_of(**NONE | {"payload": "a", "payload_base64": "b"})
    with pytest.raises(typer.BadParameter, match="'y' is not NAME=VALUE"):
        columns_of(**NONE | {"headers": "x=a,y"})


def test_each_command_has_the_same_options() -> None:
    options = inspect.signature(columns_of).parameters.keys()
    commands = (inspect.signature(command, eval_str=True).parameters for command in (schedule, send, move))
    scheduling, sending, moving = commands
    assert options - scheduling.keys() == set()
    assert options - sending.keys() == {"order"}, "what is sent has the order of its records"
    shared = options - {"order", "name"}  # what is sent needs a name
    assert all(scheduling[name].annotation == sending[name].annotation for name in shared)
    assert all(scheduling[name].default == sending[name].default for name in shared)
    assert (moving["zone"].annotation, moving["zone"].default) == (scheduling["zone"].annotation, None)
