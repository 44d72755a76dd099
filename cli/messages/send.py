"""`duemq send`"""

from __future__ import annotations

import sys
from binascii import a2b_base64
from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli import completion
from duemq.cli.output import echo_json, instant_text
from duemq.cli.session import AsJson, Url, connected, examples, pairs
from duemq.cli.times import LEVEL, Zone, duration, instant, when

EXAMPLES = examples(
    "duemq send orders 'remind the customer' --after 2h30m",
    "duemq send orders --file order.json --at 2031-01-01T08:00:00+01:00 --key 42 --label eu",
    "echo hello | duemq send orders --level 3",
    "ID=$(duemq send orders hello --after 1d --quiet)",
    "duemq send customers --null --key 42 --after 30d",
)


def send(
    topic: Annotated[str, typer.Argument(help="The topic to deliver to.", autocompletion=completion.topics)],
    payload: Annotated[
        str | None, typer.Argument(help="The payload. Without it (and without --file) it is read from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="Read the payload from a file.", exists=True, dir_okay=False, allow_dash=True
        ),
    ] = None,
    null: Annotated[bool, typer.Option("--null", help="A null payload, the tombstone of a compacted topic.")] = False,
    after: Annotated[str | None, typer.Option(help="Due after a delay: 90s, 2h30m, PT90S.")] = None,
    at: Annotated[str | None, typer.Option(help="Due at a time: RFC 3339, or epoch ms.")] = None,
    level: Annotated[int | None, typer.Option(min=1, help=LEVEL)] = None,
    zone: Zone = None,
    expires: Annotated[str | None, typer.Option(help="A dead letter if it cannot be delivered by then.")] = None,
    expires_after: Annotated[str | None, typer.Option(help="The same, after a delay from now.")] = None,
    key: Annotated[str | None, typer.Option(help="The record key at the destination.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE. Repeatable.")] = None,
    header_base64: Annotated[
        list[str] | None, typer.Option(help="NAME=BASE64, for bytes; after the others. Repeatable.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="A word to look it up by. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="An id that you choose; refused if it is taken.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Sending again with it adds no second one.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the id.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a message, or send it at once without --after, --at and --level.

    It is durable when the command ends with 0.
    """
    if null and (payload is not None or file is not None):
        raise typer.BadParameter("the payload is given as well", param_hint="--null")
    content = None if null else _payload(payload, file)
    times: dict[str, Any] = {**when(after, at, level, zone, expires)}
    if (moment := instant(expires, "--expires", zone, zones=True)) is not None:
        times["expires_at"] = moment
    if (length := duration(expires_after, "--expires-after")) is not None:
        times["expires_after"] = length
    with connected(url, as_json) as client:
        message = client.send(
            topic,
            content,
            key=key,
            headers=_headers(header or [], header_base64 or []) or None,
            labels=label,
            name=name,
            idempotency_key=idempotency_key,
            **times,
        )
    if as_json:
        echo_json(message.state.raw)
    elif quiet:
        typer.echo(message.id)
    else:
        again = " (it already existed)" if message.duplicate else ""
        typer.echo(f"{message.id}  {message.status} to {topic}, due {instant_text(message.deliver_at_ms)}{again}")


def _headers(texts: list[str], encoded: list[str]) -> list[tuple[str, bytes]]:
    headers = [(name, value.encode("utf-8", "surrogateescape")) for name, value in pairs(texts, "--header")]
    for name, value in pairs(encoded, "--header-base64"):
        try:
            headers.append((name, a2b_base64(value, strict_mode=True)))
        except ValueError as error:
            raise typer.BadParameter(f"the value of {name} is not base64", param_hint="--header-base64") from error
    return headers


def _payload(payload: str | None, file: Path | None) -> bytes:
    if payload is not None and file is not None:
        raise typer.BadParameter("the payload is given twice", param_hint="--file")
    if payload is not None:
        return payload.encode(
            "utf-8", "surrogateescape"
        )  # bytes on the command line that are not UTF-8 are sent as they are
    if file is not None and str(file) != "-":
        return file.read_bytes()
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("give one, use --file, or pipe it in; '' is empty", param_hint="PAYLOAD")
    return sys.stdin.buffer.read()
