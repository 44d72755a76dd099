"""What `duemq destination add` says of a destination, from its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import typer

from duemq.cli.session import pairs
from duemq.cli.settings.credentials_file import read_credentials_file
from duemq.model.errors import BadConfig


def values_of(items: list[str] | None, option: str) -> dict[str, Any]:
    """`["first=1s", "factor=3"]` as a mapping. A value that is JSON is taken for it, any other is text."""
    return {name: _value(text) for name, text in pairs(items or [], option).items()}


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def credentials_of(
    file: Path | None, username: str | None, password_stdin: bool, token_stdin: bool
) -> dict[str, Any] | None:
    """None where no option gives any. Secrets come by a file or stdin: others see the command line of a process."""
    if password_stdin and token_stdin:
        raise typer.BadParameter("only one secret can come by stdin", param_hint="--token-stdin")
    if file is None and username is None and not password_stdin and not token_stdin:
        return None
    try:
        credentials = {} if file is None else read_credentials_file(file)
    except BadConfig as error:
        raise typer.BadParameter(str(error), param_hint="--credentials") from error
    if username is not None:
        credentials["username"] = username
    if password_stdin or token_stdin:
        if sys.stdin.isatty():
            typer.echo("the secret, and Enter:", err=True)
        credentials["password" if password_stdin else "token"] = sys.stdin.readline().rstrip("\r\n")
    return credentials
