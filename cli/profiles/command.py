"""`duemq profile add`, `ls`, `get`, `use` and `rm`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from duemq.cli.output import echo_fields, echo_json, echo_table
from duemq.cli.profiles.command_line import given_options, profile_names
from duemq.cli.profiles.profiles import FIELDS, Profiles, checked_name
from duemq.cli.session import AsJson, Url, examples, failure, server_url
from duemq.model.errors import DuemqError

app = typer.Typer(help="Manage named servers.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The profile's name, as `duemq profile ls` shows it.", autocompletion=profile_names
    ),
]
_HIDDEN = "(hidden)"


@app.command(
    "add",
    epilog=examples(
        "duemq profile add prod --url https://duemq.example.com --api-key-file ~/.config/duemq/prod.key --use",
        "duemq profile add test --url http://10.0.0.5:8787",
        "duemq profile add lab --url https://lab:8787 --ca-file lab.pem --cert-file me.pem --key-file me.key --replace",
    ),
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 characters of A-Z a-z 0-9 _ -")],
    store_key: Annotated[
        bool, typer.Option("--store-key", help="Write the text of --api-key into the file of profiles.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Also use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of the same name.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Save a server under a name, with the options to reach it. It is not contacted.

    A key stays in its file: the profile has only the file's name.
    """
    fields = _fields(dict(given_options()), store_key)
    checked_name(name)
    with _failures(as_json), Profiles.change() as profiles:
        if name in profiles.profiles and not replace:
            raise typer.BadParameter(f"there already is a profile {name}; --replace replaces it", param_hint="NAME")
        profiles.profiles[name] = fields
        if use:
            profiles.current = name
    if as_json:
        echo_json(_document(profiles, name))
    elif use:
        typer.echo(f"{name} is added, and used from now on: {fields['url']}")
    else:
        typer.echo(f"{name} is added: `duemq --profile {name} COMMAND`, or `duemq profile use {name}`")


@app.command("ls", epilog=examples("duemq profile ls", "duemq profile ls --json | jq -r '.profiles[].url'"))
def list_profiles(as_json: AsJson = False) -> None:
    """List the profiles. The one in use has a star."""
    with _failures(as_json):
        profiles = Profiles.read()
    if as_json:
        echo_json({"profiles": [_document(profiles, name) for name in sorted(profiles.profiles)]})
        return
    rows = [
        ("*" if name == profiles.current else "", name, fields["url"], _key_of(fields))
        for name, fields in sorted(profiles.profiles.items())
    ]
    echo_table(("", "NAME", "URL", "KEY"), rows)


@app.command("get", epilog=examples("duemq profile get prod"))
def get(name: Name, as_json: AsJson = False) -> None:
    """Show a profile. The text of a key is not shown."""
    with _failures(as_json):
        profiles = Profiles.read()
        profiles.fields(name, "NAME")
    if as_json:
        echo_json(_document(profiles, name))
    else:
        echo_fields(_document(profiles, name) | {"current": "yes" if name == profiles.current else ""})


@app.command("use", epilog=examples("duemq profile use prod", "duemq profile use --none"))
def use_profile(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=profile_names)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile.")] = False,
    as_json: AsJson = False,
) -> None:
    """Use a profile from now on, unless an option or the environment names a server."""
    if none == (name is not None):
        raise typer.BadParameter("give a profile, or --none", param_hint="NAME")
    with _failures(as_json), Profiles.change() as profiles:
        if name is not None:
            profiles.fields(name, "NAME")
        profiles.current = name or ""
    if as_json:
        echo_json({"current": name})
        return
    typer.echo(f"{name} is now in use: {profiles.profiles[name]['url']}" if name else "no profile is used")
    if url := os.environ.get("DUEMQ_URL"):
        typer.echo(f"DUEMQ_URL is set, and takes precedence: {url}", err=True)


@app.command("rm", epilog=examples("duemq profile rm test"))
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a profile. The files that it refers to stay."""
    with _failures(as_json), Profiles.change() as profiles:
        profiles.fields(name, "NAME")
        del profiles.profiles[name]
        if profiles.current == name:
            profiles.current = ""
    if as_json:
        echo_json({"name": name, "removed": True})
    else:
        typer.echo(f"{name} is removed")


def _fields(given: dict[str, str], store_key: bool) -> dict[str, str]:
    """The options to store in a profile. File names become absolute."""
    if "url" not in given:
        raise typer.BadParameter("give the server's URL", param_hint="--url")
    if "api_key" in given and not store_key:
        raise typer.BadParameter(
            "the key would be in the file of profiles: give a file with --api-key-file, or add --store-key",
            param_hint="--api-key",
        )
    fields = {name: given[name] for name in FIELDS if given.get(name)}
    fields["url"] = server_url(fields.get("url"))
    for name, value in fields.items():
        if name.endswith("_file"):
            fields[name] = os.path.abspath(os.path.expanduser(value))
            if not os.path.exists(fields[name]):
                raise typer.BadParameter(f"there is no file {value}", param_hint=f"--{name.replace('_', '-')}")
        if not fields[name].isprintable():
            raise typer.BadParameter("a profile has no control characters", param_hint=f"--{name.replace('_', '-')}")
    return fields


def _document(profiles: Profiles, name: str) -> dict[str, object]:
    fields = profiles.profiles[name]
    shown = {"api_key": _HIDDEN} if "api_key" in fields else {}
    return {"name": name, "current": name == profiles.current, **fields, **shown}


def _key_of(fields: dict[str, str]) -> str:
    return _HIDDEN if "api_key" in fields else fields.get("api_key_file", "-")


@contextmanager
def _failures(as_json: bool) -> Iterator[None]:
    try:
        yield
    except DuemqError as error:
        raise failure(error, as_json) from error
