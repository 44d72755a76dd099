"""`duemq destination add`, `edit`, `ls`, `get`, `test`, `pause`, `resume` and `rm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from duemq.cli import completion
from duemq.cli.confirmation import Yes, confirm, must_ask
from duemq.cli.destinations.declaration import credentials_of, fields_of, told_by_option, warn_of_private_address
from duemq.cli.exit_codes import Exit
from duemq.cli.output import Wide, echo_fields, echo_json, echo_table, instant_text
from duemq.cli.session import AsJson, Url, connected, examples
from duemq.model.printable import escaped
from duemq.model.timing import format_duration, format_ms

app = typer.Typer(
    help="Declare, change, list, test, pause and remove the destinations that messages are sent to.",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The destination's name, as `duemq destination ls` shows it.",
        autocompletion=completion.destinations,
    ),
]
_NOT_AS_FIELDS = ("figures", "retry", "options", "paused")
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Messages delivered to it go to the destination. Repeatable."),
]
Credentials = Annotated[
    Path | None, typer.Option(help="A file with password, token, signing_secrets …: TOML, or JSON.", metavar="FILE")
]
Username = Annotated[str | None, typer.Option(help="duemq's user name there.")]
PasswordStdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin, one line.")]
TokenStdin = Annotated[bool, typer.Option("--token-stdin", help="Read a token from stdin, one line.")]
Rate = Annotated[int | None, typer.Option(min=0, help="Messages per second; 0: any.")]
Concurrency = Annotated[int | None, typer.Option(min=0, help="Messages in flight; 0: what suits the system.")]
Timeout = Annotated[str | None, typer.Option(metavar="TIME", help="Limit for an answer, such as 30s.")]
Retry = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A field of the retry rule, such as delays=1s,1m. Repeatable."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the system. Repeatable."),
]
Start = Annotated[
    Literal["last", "first"] | None,
    typer.Option(help="Of new topics: messages delivered from now on (last), or all that are kept (first)."),
]


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
    topic: Topics = None,
    credentials: Credentials = None,
    username: Username = None,
    password_stdin: PasswordStdin = False,
    token_stdin: TokenStdin = False,
    rate: Rate = None,
    concurrency: Concurrency = None,
    timeout: Timeout = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Messages with the same key one after another.")] = False,
    retry: Retry = None,
    option: Options = None,
    start: Start = None,
    paused: Annotated[bool, typer.Option("--paused", help="Send no messages until it is resumed.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace one of the same name.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Declare a destination. It takes effect within a second.

    Credentials are read from a file or from stdin, and are never shown again. --replace keeps the existing ones unless
    you give new ones.
    """
    fields = fields_of(
        topic, credentials_of(credentials, username, password_stdin, token_stdin), rate, concurrency, timeout,
        ordered or None, retry, option, start,
    )  # fmt: skip
    fields |= {name: True for name, chosen in (("paused", paused), ("replace", replace)) if chosen}
    with connected(url, as_json, told_by_option) as client:
        destination = client.declare_destination(name, target, **fields)
    if as_json:
        echo_json(destination)
    else:
        topics = ", ".join((destination["topic"], *destination["topics"]))
        typer.echo(f"{name} is declared: messages delivered to {topics} go to {escaped(target)}")
    warn_of_private_address(target)


@app.command(
    "edit",
    epilog=examples(
        "duemq destination edit billing https://billing.example.com/v2",
        "duemq destination edit billing --rate 50 --timeout 10s",
        "duemq destination edit billing --topic invoices --topic refunds    # these, and no others",
        "duemq destination edit mq --username duemq --password-stdin < password.txt",
    ),
)
def edit(
    name: Name,
    target: Annotated[str | None, typer.Argument(metavar="URL", help="Where messages go from now on.")] = None,
    topic: Topics = None,
    credentials: Credentials = None,
    username: Username = None,
    password_stdin: PasswordStdin = False,
    token_stdin: TokenStdin = False,
    rate: Rate = None,
    concurrency: Concurrency = None,
    timeout: Timeout = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--no-ordered", help="Messages with the same key one after another.")
    ] = None,
    retry: Retry = None,
    option: Options = None,
    start: Start = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the given fields of a destination, within a second; all others stay.

    Topics, credentials, the retry rule and the options are each replaced as a whole.
    """
    changes = fields_of(
        topic, credentials_of(credentials, username, password_stdin, token_stdin), rate, concurrency, timeout, ordered,
        retry, option, start,
    )  # fmt: skip
    changes |= {} if target is None else {"url": target}
    if not changes:
        raise typer.BadParameter("say what changes: a URL, or an option such as --rate", param_hint="URL")
    with connected(url, as_json, told_by_option) as client:
        destination = client.change_destination(name, **changes)
    _tell(destination, as_json)
    warn_of_private_address(target or "")


@app.command("ls", epilog=examples("duemq destination ls", "duemq destination ls --json | jq '.destinations[].state'"))
def list_destinations(wide: Wide = False, url: Url = None, as_json: AsJson = False) -> None:
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
    columns = ("NAME", "SYSTEM", "STATE", "URL", "TOPICS", "LAG", "CREDENTIALS", "TROUBLE")
    echo_table(columns, rows, short=("NAME", "SYSTEM", "STATE", "LAG", "TROUBLE", "URL"), wide=wide)


@app.command("get", epilog=examples("duemq destination get billing", "duemq destination get billing --json"))
def show(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Show a destination: its declaration, the names of its credentials, and its delivery figures."""
    with connected(url, as_json) as client:
        destination = client.destination(name)
    _tell(destination, as_json)


@app.command("test", epilog=examples("duemq destination test billing", "duemq destination test billing --json"))
def test(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Send a test message, with the header x-duemq-test: 1. The exit code is 0 if it was accepted."""
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
    """Send no messages until it is resumed. Messages wait in their topics."""
    with connected(url, as_json) as client:
        _tell_state(client.pause_destination(name), as_json)


@app.command("resume", epilog=examples("duemq destination resume billing"))
def resume(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Send messages again, also if the destination was disabled."""
    with connected(url, as_json) as client:
        _tell_state(client.resume_destination(name), as_json)


@app.command("rm", epilog=examples("duemq destination rm billing", "duemq destination rm billing --yes"))
def remove(name: Name, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Remove a destination and its credentials. Its topics keep their messages."""
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
    """Why no messages are sent, if the server knows the reason."""
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
    """A retry rule with readable durations."""
    shown: dict[str, str] = {name: format_duration(rule[name]) for name in ("first", "most") if name in rule}
    if "delays" in rule:
        shown["delays"] = ", ".join(map(format_duration, rule["delays"]))
    return rule | shown


def _tell_figures(figures: dict[str, Any]) -> None:
    """The relays' counters, one per line, and the last failures, newest first."""
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
