"""`duemq key add`, `ls`, `rotate` and `revoke`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from duemq.cli.confirmation import Yes, confirm, must_ask
from duemq.cli.output import Wide, echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples, failure
from duemq.cli.times import duration
from duemq.model.callers.access import Scope
from duemq.model.errors import DuemqError, Rejected

app = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id or name, as `duemq key ls` lists them.")]


@app.command(
    "add",
    epilog=examples(
        "duemq key add ops --scope admin --data /var/lib/duemq    # the first one, on the server's machine",
        "duemq key add shop --scope send --scope cancel --topic 'orders.*' --rate 500 --expires 90d",
        "duemq key add anna --role operator",
        "DUEMQ_API_KEY=$(duemq key add report --scope read) duemq ls",
    ),
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    scope: Annotated[list[Scope] | None, typer.Option(metavar="SCOPE", help=f"{', '.join(Scope)}. Repeatable.")] = None,
    role: Annotated[
        Literal["viewer", "operator", "admin"] | None,
        typer.Option(help="Instead of scopes: read all; all but keys; everything."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only for this topic or pattern, such as 'orders.*'. Repeatable."),
    ] = None,
    rate: Annotated[int, typer.Option(min=0, help="Messages and requests a second, per process; 0: any.")] = 0,
    expires: Annotated[str | None, typer.Option(help="Valid for this time, such as 90d.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data folder of a server on this machine; no key needed.", metavar="DIR")
    ] = None,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key and print its text. It is never shown again.

    Once it has a first key, a server requires keys, so the first has to be an admin's. A user with access to the data
    folder of a running server needs no key: use that to create the first one if a server listens beyond 127.0.0.1.
    """
    if not scope and role is None:
        raise typer.BadParameter("give the key's rights: --scope (repeatable) or --role", param_hint="--scope")
    from duemq.client.http.requests import ABSENT

    good_for = duration(expires, "--expires") or ABSENT

    if data is None:
        with connected(url, as_json) as client:
            key = _asked(
                lambda sure: client.create_key(
                    name, scope or (), good_for, role=role, topics=topic or (), rate=rate, confirm=sure
                ),
                yes, as_json,
            )  # fmt: skip
    else:
        from duemq.client.http.operations import key_fields
        from duemq.delay.api.control_socket import ask_for_key

        folder = data
        try:
            key = _asked(
                lambda sure: ask_for_key(
                    folder, key_fields(name, scope or (), good_for, role, topic or (), rate, sure)
                ),
                yes, as_json,
            )  # fmt: skip
        except DuemqError as error:
            raise failure(error, as_json) from error
    _show_text(key, as_json)


@app.command("ls", epilog=examples("duemq key ls", "duemq key ls --json | jq -r '.keys[].name'"))
def list_keys(wide: Wide = False, url: Url = None, as_json: AsJson = False) -> None:
    """List the API keys, oldest first, including revoked and expired ones."""
    with connected(url, as_json) as client:
        keys = client.keys()
    if as_json:
        echo_json({"keys": keys})
    else:
        rows = [
            (key["id"], key["name"], key["state"], " ".join(key["scopes"]), " ".join(key["topics"]) or "all",
             str(key["rate"] or "any"), key["created_at"], key["expires_at"] or "-")
            for key in keys
        ]  # fmt: skip
        columns = ("ID", "NAME", "STATE", "SCOPES", "TOPICS", "RATE", "CREATED", "EXPIRES")
        echo_table(columns, rows, short=("ID", "NAME", "STATE", "SCOPES", "TOPICS", "EXPIRES"), wide=wide)


@app.command("rotate", epilog=examples("duemq key rotate shop", "duemq key rotate ab3kd7m2q9xz --overlap 0s"))
def rotate(
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old text stays valid.")] = "24h",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new text, and print it. Senders can change over during the overlap."""
    with connected(url, as_json) as client:
        key = client.rotate_key(key_id, duration(overlap, "--overlap") or "")
    _show_text(key, as_json)


@app.command("revoke", epilog=examples("duemq key revoke shop", "duemq key revoke ab3kd7m2q9xz --yes"))
def revoke(key_id: KeyId, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Revoke a key: within a second it is no longer accepted. Repeating it is harmless."""
    with connected(url, as_json) as client:
        if must_ask(yes, as_json):
            confirm(_question(key_id, client.keys()), yes, as_json)
        key = client.revoke_key(key_id)
    if as_json:
        echo_json(key)
    else:
        typer.echo(f"key {key['id']} ({key['name']}) is revoked")


def _question(key_id: str, keys: Sequence[dict[str, Any]]) -> str:
    """The question before revoking this key."""
    named = [key for key in keys if key_id in (key["id"], key["name"])]
    what = ", ".join(f"{key['name']} ({key['id']}, {' '.join(key['scopes'])}, {key['state']})" for key in named)
    admins = [key for key in keys if "admin" in key["scopes"] and key["state"] == "active"]
    last = " It is the last admin's key: create the next one with --data." if admins and admins == named else ""
    return f"Revoke {what or key_id}?{last} This cannot be undone."


def _asked(make: Callable[[bool], dict[str, Any]], yes: bool, as_json: bool) -> dict[str, Any]:
    """Create a key. If it is the first one, ask for confirmation: callers without a key are refused from then on."""
    try:
        return make(yes)
    except Rejected as error:
        if error.code != "unconfirmed":
            raise
        confirm(f"{error.detail[:1].upper()}{error.detail[1:]}. Create the key?", yes, as_json)
        return make(True)


def _show_text(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(key)
        return
    scopes = ", ".join(key["scopes"])
    typer.echo(f"key {key['id']} ({key['name']}) may {scopes}; its text is shown only this once:", err=True)
    typer.echo(key["key"])
