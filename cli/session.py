"""Shared by all commands that talk to a server: options, connection, and error reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.cli.command_group import in_options
from duemq.cli.exit_codes import Exit, exit_of
from duemq.cli.output import echo_json
from duemq.model.errors import DuemqError

if TYPE_CHECKING:  # importing httpx takes longer than `duemq --help` may
    from duemq.client import Admin

Url = Annotated[str | None, typer.Option("--url")]
"""Marks a command that talks to a server: it gets the connection options in `cli/profiles/command_line.py`."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def server_url(url: str | None) -> str:
    """The server's address, with a scheme and without a trailing slash. Raises BadParameter."""
    from duemq.client.http.connection import http_options

    try:
        return str(http_options(url, None, 1.0)["base_url"]).rstrip("/")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error


@contextmanager
def connected(url: str | None, as_json: bool, tell: Callable[[DuemqError], str] = str) -> Iterator[Admin]:
    """A client for the duration of one command. Its errors end the command with one line, formatted by `tell`, and an
    exit code."""
    from duemq.client import Admin

    try:
        client = Admin(url, retries=0)  # report failures to the user at once
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    except DuemqError as error:
        raise failure(error, as_json) from error
    try:
        with client:
            yield client
    except DuemqError as error:
        raise failure(error, as_json, tell) from error


def failure(error: DuemqError, as_json: bool, tell: Callable[[DuemqError], str] = str) -> typer.Exit:
    """Report an error: one line on stderr, and with `--json` its members on stdout."""
    code = exit_of(error)
    typer.secho(f"duemq: {in_options(tell(error))}{_whose_server(error, code)}", err=True, fg=typer.colors.RED)
    if as_json:
        echo_json({"error": problem_of(error)})
    return typer.Exit(code)


def problem_of(error: DuemqError) -> dict[str, Any]:
    """The members of an error that are present: code, detail, field, status, request_id and others for its code."""
    names = ("code", "field", "status", "request_id", "retry_after_s", "message_id", "outcome_unknown")
    attributes = {name: getattr(error, name, None) for name in names}
    members = {name: value for name, value in attributes.items() if value is not None}
    return {"kind": type(error).__name__, "detail": str(error), **members, **getattr(error, "extra", {})}


def _whose_server(error: DuemqError, code: Exit) -> str:
    profile = os.environ.get("DUEMQ_PROFILE")  # set if the server comes from a profile
    if profile and code is Exit.UNAVAILABLE and getattr(error, "outcome_unknown", None) is False:
        return f"; it is the server of profile {profile}"
    return ""


def examples(*lines: str) -> str:
    """An epilog with example commands."""
    return "\n".join(("[bold]Examples[/bold]", *(line.replace("[", "\\[") for line in lines)))


def pairs(items: list[str], option: str) -> list[tuple[str, str]]:
    """The names and values in items such as `["a=1", "b=2"]`."""
    named = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=option)
        named.append((name, value))
    return named
