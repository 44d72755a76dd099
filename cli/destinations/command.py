"""`duemq destination add`, `ls`, `get`, `test`, `pause`, `resume` and `rm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from duemq.cli import completion
from duemq.cli.confirmation import Yes, confirm, must_ask
from duemq.cli.destinations.declaration import credentials_of, told_by_option, values_of
from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_fields, echo_json, echo_table, instant_text
from duemq.cli.session import AsJson, Url, connected, duration, examples
from duemq.model.printable import escaped
from duemq.model.timing import format_duration, format_ms

app = typer.Typer(
    help="Declare, list, test, pause and remove the destinations that messages are handed on to.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The destination's name, as `duemq destination ls` has it.",
        autocompletion=completion.destinations,
    ),
]
_NOT_AS_FIELDS = ("figures", "retry", "options", "paused")


@app.command(
    "add",
    epilog=examples(
        "duemq destination add billing https://billing.example.com/hooks --topic invoices --credentials billing.toml",
        "duemq destination add mq amqps://mq.example.com --username duemq --password-stdin < password.txt",
        "duemq destination add slow https://slow.example.com --rate 50 --concurrency 5 --retry kind=exponential "
        "--retry first=1s --retry retries=10",
        "duemq destination add brief https://brief.example.com --retry kind=delays --retry delays=1s,1m",
        "duemq destination add billing https://billing.example.com/v2 --topic invoices --replace",
    ),
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 characters of A-Z a-z 0-9 _ -")],
    target: Annotated[
        str, typer.Argument(metavar="URL", help="https://, amqps://, nats://, rediss://, rocketmq:// …, no password.")
    ],
    topic: Annotated[
        list[str] | None, typer.Option(help="What is delivered into it is handed on; may be given several times.")
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="A file with password, token, signing_secrets …: TOML, or JSON.", metavar="FILE")
    ] = None,
    username: Annotated[str | None, typer.Option(help="Who duemq is there.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from stdin, one line.")
    ] = False,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read a token from stdin, one line.")] = False,
    rate: Annotated[int | None, typer.Option(help="Messages per second; 0: any.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Messages in flight; 0: what suits the system.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long an answer may take, such as 30s.")] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Messages with the same key one after another.")] = False,
    retry: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the retry rule, such as delays=1s,1m; may be given several times."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the system's options; may be given several times.")
    ] = None,
    start: Annotated[
        Literal["last", "first"] | None,
        typer.Option(help="Topics: what is delivered from now on (last), or all that is kept (first)."),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Hand on nothing until it is resumed.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="In place of one of the same name.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Declare a destination. It is in force within a second.

    Credentials are read from a file or from stdin, and are never shown again. --replace keeps the ones in place unless
    you give new ones.
    """
    fields: dict[str, Any] = {
        "topics": topic, "credentials": credentials_of(credentials, username, password_stdin, token_stdin),
        "rate": rate, "concurrency": concurrency, "timeout": duration(timeout, "--timeout"), "ordered": ordered or None,
        "retry": values_of(retry, "--retry") or None, "options": values_of(option, "--option") or None,
        "start": start, "paused": paused or None, "replace": replace or None,
    }  # fmt: skip
    chosen = {field: value for field, value in fields.items() if value is not None}
    with connected(url, as_json, told_by_option) as client:
        destination = client.declare_destination(name, target, **chosen)
    if as_json:
        echo_json(destination)
    else:
        topics = ", ".join((destination["topic"], *destination["topics"]))
        typer.echo(f"{name} is declared: what is delivered into {topics} is handed on to {escaped(target)}")


@app.command("ls", epilog=examples("duemq destination ls", "duemq destination ls --json | jq '.destinations[].state'"))
def list_destinations(url: Url = None, as_json: AsJson = False) -> None:
    """List the destinations, by name."""
    with connected(url, as_json) as client:
        destinations = client.destinations()
    if as_json:
        echo_json({"destinations": destinations})
        return
    rows = [
        (one["name"], one["system"], one["state"], one["url"], " ".join((one["topic"], *one["topics"])),
         _lag_of(one), " ".join(one["credentials"]) or "-", _trouble_of(one))
        for one in destinations
    ]  # fmt: skip
    echo_table(("NAME", "SYSTEM", "STATE", "URL", "TOPICS", "LAG", "CREDENTIALS", "TROUBLE"), rows)


@app.command("get", epilog=examples("duemq destination get billing", "duemq destination get billing --json"))
def show(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Show a destination: its declaration, the names of its credentials, and its delivery figures."""
    with connected(url, as_json) as client:
        destination = client.destination(name)
    _tell(destination, as_json)


@app.command("test", epilog=examples("duemq destination test billing", "duemq destination test billing --json"))
def test(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Send a test message, with the header x-duemq-test: 1. The exit code is 0 where it was accepted."""
    with connected(url, as_json) as client:
        reply = client.test_destination(name)
    accepted = reply["result"] == "accepted"
    if as_json:
        echo_json(reply)
    else:
        detail = f": {escaped(reply['detail'])}" if reply["detail"] else ""
        typer.echo(f"{reply['result']} after {reply['took_ms']:g} ms, {escaped(reply['status'])}{detail}")
    raise typer.Exit(Exit.DONE if accepted else Exit.ERROR)


@app.command("pause", epilog=examples("duemq destination pause billing"))
def pause(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Hand on nothing until it is resumed. Messages wait in their topics."""
    with connected(url, as_json) as client:
        _tell_state(client.pause_destination(name), as_json)


@app.command("resume", epilog=examples("duemq destination resume billing"))
def resume(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Hand on again, also to one that is disabled."""
    with connected(url, as_json) as client:
        _tell_state(client.resume_destination(name), as_json)


@app.command("rm", epilog=examples("duemq destination rm billing", "duemq destination rm billing --yes"))
def remove(name: Name, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Remove a destination and its credentials. What is in its topics stays there."""
    with connected(url, as_json) as client:
        if must_ask(yes, as_json):
            destination = client.destination(name)
            lag = _lag_of(destination)
            confirm(f"Remove {name} and its credentials? Messages waiting for it: {lag}.", yes, as_json)
        client.remove_destination(name)
    if as_json:
        echo_json({"name": name, "removed": True})
    else:
        typer.echo(f"{name} is removed")


def _lag_of(destination: dict[str, Any]) -> str:
    lag = (destination["figures"] or {}).get("lag")
    return "?" if lag is None else str(lag)


def _trouble_of(destination: dict[str, Any]) -> str:
    """Why nothing is handed on, as far as the server knows."""
    return escaped(destination["disabled"] or (destination["figures"] or {}).get("trouble", "")) or "-"


def _tell_state(destination: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(destination)
    else:
        reason = f": {escaped(destination['disabled'])}" if destination["disabled"] else ""
        typer.echo(f"{destination['name']} is {destination['state']}{reason}")


def _tell(destination: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(destination)
        return
    fields = {name: value for name, value in destination.items() if name not in _NOT_AS_FIELDS}
    echo_fields(fields | {"timeout": format_duration(destination["timeout"])})
    for name, values in (("retry", _rule(destination["retry"])), ("options", destination["options"])):
        if values:
            typer.echo(name)
            echo_fields(values, "  ")
    if destination["figures"]:
        _tell_figures(destination["figures"])


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    """A retry rule with its durations as people write them."""
    shown: dict[str, str] = {name: format_duration(rule[name]) for name in ("first", "most") if name in rule}
    if "delays" in rule:
        shown["delays"] = ", ".join(map(format_duration, rule["delays"]))
    return rule | shown


def _tell_figures(figures: dict[str, Any]) -> None:
    """What relays have counted, a line each, and the last failures, newest first."""
    lines = {name: value for name, value in figures.items() if name != "last_failures"}
    for name in ("results", "statuses"):
        lines[name] = ", ".join(f"{count} {what}" for what, count in figures.get(name, {}).items() if count)
    for name in ("lateness_ms", "took_ms"):
        lines[name] = ", ".join(f"{share} {ms}" for share, ms in figures.get(name, {}).items() if ms is not None)
    for name in ("oldest_at", "last_accepted_at"):
        if (at := figures.get(name)) is not None:
            lines[name] = instant_text(at)
    typer.echo("figures")
    echo_fields(lines, "  ")
    if failures := figures.get("last_failures"):
        typer.echo("last failures")
    for one in failures or ():
        detail = f": {escaped(one['detail'])}" if one["detail"] else ""
        status, attempt = escaped(one["status"]), f"attempt {one['attempt']}"
        typer.echo(f"  {format_ms(one['at'])}  {escaped(one['id'])}  {attempt}, {one['took_ms']} ms, {status}{detail}")
