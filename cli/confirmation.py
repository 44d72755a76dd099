"""Asks before a change that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def must_ask(yes: bool, as_json: bool) -> bool:
    """Whether to ask. Ends the command if there is neither a terminal nor `--yes`."""
    if not yes and (as_json or not _has_terminal()):
        raise typer.BadParameter("without a terminal to ask at, this needs --yes", param_hint="--yes")
    return not yes


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, yes: bool, as_json: bool) -> None:
    """End the command unless the answer is yes."""
    if must_ask(yes, as_json):
        typer.confirm(question, abort=True, err=True)  # stdout is for programs
