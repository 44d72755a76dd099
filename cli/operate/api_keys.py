"""`duemq keys create`, `ls`, `rotate` and `revoke`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli.output import echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, duration, examples, failure
from duemq.model.errors import DuemqError

app = typer.Typer(help="Make, list, rotate and revoke API keys.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `duemq keys ls` lists it.")]


@app.command(
    "create",
    epilog=examples(
        "duemq keys create ops --scope admin --data /var/lib/duemq    # the first one, on the server's machine",
        "duemq keys create shop --scope send --scope cancel --topic 'orders.*' --rate 500 --expires 90d",
        "duemq keys create anna --role operator",
        "DUEMQ_API_KEY=$(duemq keys create report --scope read) duemq ls",
    ),
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="send, read, cancel, operate or admin; may be given several times.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="viewer, operator (all but keys) or admin, instead of scopes.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="The only topic it is for, or a pattern such as 'orders.*'; may be given several times."),
    ] = None,
    rate: Annotated[int, typer.Option(help="Messages and requests a second, per process; 0: any.")] = 0,
    expires: Annotated[str | None, typer.Option(help="After how long it opens nothing, such as 90d.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data folder of a server on this machine, which needs no key.", metavar="DIR")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print its text. Nobody can show it again.

    From the first key on a server asks for keys. Who may open the data folder of a running server needs none: that is
    how the first one is made where a server listens beyond 127.0.0.1.
    """
    if not scope and role is None:
        raise typer.BadParameter("say what the key may do: --scope (several times) or --role")
    from duemq.client.http.requests import ABSENT

    good_for = duration(expires, "--expires") or ABSENT
    if data is None:
        with connected(url, as_json) as client:
            key = client.create_key(name, scope or (), good_for, role=role, topics=topic or (), rate=rate)
    else:
        from duemq.client.http.operations import key_fields
        from duemq.delay.api.control_socket import ask_for_key

        try:
            key = ask_for_key(data, key_fields(name, scope or (), good_for, role, topic or (), rate))
        except DuemqError as error:
            raise failure(error, as_json) from error
    _show_text(key, as_json)


@app.command("ls", epilog=examples("duemq keys ls", "duemq keys ls --json | jq -r '.keys[].name'"))
def list_keys(url: Url = None, as_json: AsJson = False) -> None:
    """List the API keys, oldest first, revoked and expired ones too."""
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
        echo_table(("ID", "NAME", "STATE", "SCOPES", "TOPICS", "RATE", "CREATED", "EXPIRES"), rows)


@app.command("rotate", epilog=examples("duemq keys rotate ab3kd7m2q9xz", "duemq keys rotate ab3kd7m2q9xz --overlap 0s"))
def rotate(
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old text is good still.")] = "24h",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new text, and print it. Senders have the overlap to change over."""
    with connected(url, as_json) as client:
        key = client.rotate_key(key_id, duration(overlap, "--overlap") or "")
    _show_text(key, as_json)


@app.command("revoke", epilog=examples("duemq keys revoke ab3kd7m2q9xz"))
def revoke(key_id: KeyId, url: Url = None, as_json: AsJson = False) -> None:
    """Revoke a key: within a second it opens nothing any more. A repeat does no harm."""
    with connected(url, as_json) as client:
        key = client.revoke_key(key_id)
    if as_json:
        echo_json(key)
    else:
        typer.echo(f"key {key['id']} ({key['name']}) is revoked")


def _show_text(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(key)
        return
    scopes = ", ".join(key["scopes"])
    typer.echo(f"key {key['id']} ({key['name']}) may {scopes}; its text is shown this once:", err=True)
    typer.echo(key["key"])
