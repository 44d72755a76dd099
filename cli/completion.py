"""Completions for the shell, from the server: within a second or not at all, and never an error."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from duemq.client import Admin

_WITHIN_S: Final = 1.0
_MOST: Final = 100
_PLAIN = re.compile(r"[A-Za-z0-9._@%+,/][A-Za-z0-9._@%+,/-]*")
"""The shell puts a word on the command line unchanged, so words with special characters are not offered."""


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _answered(ctx, incomplete, lambda client: (topic.name for topic in client.topics()))


def message_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of scheduled messages, soonest first; for a message without a name, its id."""

    def ask(client: Admin) -> Iterable[str]:
        if incomplete:
            named = client.page(page_size=_MOST, name_prefix=incomplete)
            yield from (one.name or one.id for one in named.messages)
        yield from (one.name or one.id for one in client.page(page_size=_MOST).messages)

    return _answered(ctx, incomplete, ask)


def destinations(ctx: typer.Context, incomplete: str) -> list[str]:
    return _answered(ctx, incomplete, lambda client: (one["name"] for one in client.destinations()))


def _answered(ctx: typer.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    from duemq.cli.profiles.command_line import resolve, typed_options
    from duemq.client import Admin

    answers: list[str] = []

    def run() -> None:
        with suppress(Exception):
            in_force = resolve(typed_options(ctx), os.environ)
            options: dict[str, Any] = {name: value for name, value in in_force.items() if name != "profile"}
            with Admin(timeout=_WITHIN_S, retries=0, **options) as client:
                answers.extend(ask(client))

    # In a thread, because the resolution of a host name has no timeout.
    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(_WITHIN_S)
    return [one for one in dict.fromkeys(answers) if one.startswith(incomplete) and _PLAIN.fullmatch(one)][:_MOST]
