"""Turns the options of `duemq destination add` and `edit` into the fields of the API."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import typer

from duemq.cli.session import pairs
from duemq.cli.settings.credentials_file import read_credentials_file
from duemq.cli.times import duration
from duemq.model.errors import BadConfig, DuemqError

_LISTS: Final = ("delays",)
_OPTIONS: Final = {
    "name": "NAME", "url": "URL", "topics": "--topic", "retry": "--retry", "options": "--option",
    "credentials": "--credentials", "rate": "--rate", "concurrency": "--concurrency", "timeout": "--timeout",
}  # fmt: skip
"""The command line's names for fields of the API."""
_FIELD: Final = re.compile(rf"({'|'.join(_OPTIONS)})\b(?:\.(?:\d+\b)?([\w.-]*))?(?=: | is no field)")


def values_of(items: list[str] | None, option: str) -> dict[str, Any]:
    """Turn `["first=1s", "factor=3"]` into a mapping. A value that parses as JSON is JSON, any other is text. The items
    of a list may be separated by commas."""
    return {name: _list(text) if name in _LISTS else _value(text) for name, text in pairs(items or [], option)}


def fields_of(
    topics: list[str] | None,
    credentials: dict[str, Any] | None,
    rate: int | None,
    concurrency: int | None,
    timeout: str | None,
    ordered: bool | None,
    retry: list[str] | None,
    options: list[str] | None,
    start: str | None,
) -> dict[str, Any]:
    """The fields of the API for the options that are given."""
    fields = {
        "topics": topics, "credentials": credentials, "rate": rate, "concurrency": concurrency,
        "timeout": duration(timeout, "--timeout"), "ordered": ordered, "retry": values_of(retry, "--retry") or None,
        "options": values_of(options, "--option") or None, "start": start,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def warn_of_private_address(url: str) -> None:
    """Warn at once about an address with which every message would fail, unless the operator allows it."""
    from duemq.relay.network.address import ForbiddenAddress, check_address

    host = urlsplit(url).hostname or ""
    if host == "localhost":
        host = "127.0.0.1"
    elif not host or host.rpartition(".")[2].isalpha():
        return  # a host name, which relays resolve
    try:
        check_address(host, ())
    except ForbiddenAddress:
        typer.echo(
            f"{host} is not public: relays refuse it (forbidden_address) unless relay.private_networks has it", err=True
        )


def _list(text: str) -> list[Any]:
    value = _value(text)
    return value if isinstance(value, list) else [_value(word.strip()) for word in text.split(",")]


def told_by_option(error: DuemqError) -> str:
    """The text of an API error. If it begins with a field, the option is named instead."""

    def named(field: re.Match[str]) -> str:
        return f"{_OPTIONS[field[1]]} {field[2]}" if field[2] else _OPTIONS[field[1]]

    text = str(error)
    return named(field) + text[field.end() :] if (field := _FIELD.match(text)) else text


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def credentials_of(
    file: Path | None, username: str | None, password_stdin: bool, token_stdin: bool
) -> dict[str, Any] | None:
    """The credentials in these options; None without any of them. Secrets come from a file or stdin, because other
    users can see the command line of a process."""
    if password_stdin and token_stdin:
        raise typer.BadParameter("only one secret can be read from stdin", param_hint="--token-stdin")
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
