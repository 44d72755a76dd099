"""The options for the server and the caller's credentials: one list for all commands, before or after the command.

A command that talks to a server has a parameter `url: Url`; `CommandLine` adds the other options. While the command
runs, the environment has the effective values, for the SDK and for child processes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from duemq.cli.command_group import CommandGroup
from duemq.cli.profiles.profiles import Profiles
from duemq.cli.session import failure
from duemq.model.errors import BadConfig, DuemqError

_VARIABLES: Final = {
    "url": "DUEMQ_URL", "api_key": "DUEMQ_API_KEY", "ca_file": "DUEMQ_CA_FILE", "cert_file": "DUEMQ_CERT_FILE",
    "key_file": "DUEMQ_KEY_FILE", "profile": "DUEMQ_PROFILE",
}  # fmt: skip
_MAX_KEY: Final = 8 << 10
_TOGETHER: Final = (("api_key", "api_key_file"), ("cert_file", "key_file"))
"""Pairs that are replaced together: a certificate fits only its own key."""

_given: ContextVar[Mapping[str, str]] = ContextVar("given", default=MappingProxyType({}))


def profile_names() -> list[str]:
    try:
        return list(Profiles.read().profiles)
    except DuemqError:
        return []


def _options(
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server's address. Or DUEMQ_URL.", show_default="http://127.0.0.1:8787"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A server of `duemq profile ls`. Or DUEMQ_PROFILE.", autocompletion=profile_names
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The API key. Other users of this machine see it here; DUEMQ_API_KEY hides it."
        ),
    ] = None,
    api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the API key, on its first line.")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="For https://: trusted authorities (PEM). Or DUEMQ_CA_FILE.")
    ] = None,
    cert_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your certificate (PEM). Or DUEMQ_CERT_FILE.")
    ] = None,
    key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The key of that certificate. Or DUEMQ_KEY_FILE.")
    ] = None,
) -> None:
    """Never called: its parameters define the options."""


class CommandLine(CommandGroup):
    """The root of the commands. It adds the connection options to itself and to each command that connects."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        made = typer.Typer(add_completion=False)
        made.command()(_options)
        options = typer.main.get_command(made).params
        names = [str(option.name) for option in options]
        self.params += options
        self.callback = _before_command(self.callback, names)
        _extend(self, options, names)


def _extend(group: Any, options: list[Any], names: list[str]) -> None:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _extend(command, options, names)
        elif any(parameter.name == "url" for parameter in command.params):
            command.params = [parameter for parameter in command.params if parameter.name != "url"] + options
            command.callback = _connecting(command.callback, names)
        else:
            command.callback = _without_connection(command.callback)


def _before_command(callback: Callable[..., Any] | None, names: list[str]) -> Callable[..., None]:
    def root(**values: Any) -> None:
        given = {name: value for name in names if (value := values.pop(name)) is not None}
        _given.set(given)
        for name, path in given.items():
            if name.endswith("_file") and name in _VARIABLES:
                os.environ[_VARIABLES[name]] = path  # even if the command does not connect: its children may
        if callback is not None:
            callback(**values)

    return root


def _connecting(callback: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def command(**values: Any) -> Any:
        given = {**_given.get()} | {name: value for name in names if (value := values.pop(name)) is not None}
        try:
            in_force = resolve(given, os.environ)
        except DuemqError as error:
            raise failure(error, bool(values.get("as_json"))) from error
        token = _given.set(given)
        try:
            with _environment(in_force):
                return callback(url=in_force.get("url"), **values)
        finally:
            _given.reset(token)

    return command


def _without_connection(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse options that would be ignored: `duemq --profile prod backup` would back up this machine."""

    @functools.wraps(callback)
    def command(**values: Any) -> Any:
        for name in ("url", "profile", "api_key", "api_key_file"):
            if name in _given.get():
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter("this command does not talk to a server", param_hint=option)
        return callback(**values)

    return command


def given_options() -> Mapping[str, str]:
    """The connection options on this command line, by name, without the environment and the profile."""
    return _given.get()


def typed_options(ctx: typer.Context) -> dict[str, str]:
    """The connection options on a command line that is being typed."""
    both = {**ctx.find_root().params, **{name: value for name, value in ctx.params.items() if value is not None}}
    return {name: both[name] for name in (*_VARIABLES, "api_key_file") if both.get(name) is not None}


def resolve(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The effective connection values, from options, environment and profile; earlier ones override later ones. They
    include the text of the key, and the name of the profile in use as `profile`.

    A profile stands for one server: it is used as a whole, or not at all if the URL comes from elsewhere. A profile
    named by an option overrides the environment. Raises BadConfig for a profile or a key file that cannot be used.
    """
    if "url" in given and "profile" in given:
        raise typer.BadParameter("--url and --profile both name a server: give one of them", param_hint="--profile")
    if "api_key" in given and "api_key_file" in given:
        raise typer.BadParameter("--api-key and --api-key-file both give a key: use one", param_hint="--api-key-file")
    variables = {name: environment[each] for name, each in _VARIABLES.items() if environment.get(each)}
    profile = None
    if "profile" in given:
        profile = given["profile"]
        layers = [variables, Profiles.read().fields(profile, "--profile"), given]
    elif "url" in given or "url" in variables:
        layers = [variables, given]
    else:
        profiles = Profiles.read()
        profile = variables.get("profile") or profiles.current
        fields = profiles.fields(profile, _VARIABLES["profile"]) if profile else {}
        layers = [fields, variables, given]
    values: dict[str, str] = {}
    for layer in layers:
        for pair in _TOGETHER:
            if layer.keys() & set(pair):
                values = {name: value for name, value in values.items() if name not in pair}
        values |= layer
    if path := values.pop("api_key_file", None):
        values["api_key"] = _first_line(path)
    in_force = {name: value for name, value in values.items() if name in _VARIABLES and name != "profile"}
    return in_force | ({"profile": profile} if profile else {})


def _first_line(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="ascii") as file:
            key = file.readline(_MAX_KEY).strip()
    except OSError as error:
        raise BadConfig(f"the API key in {path} cannot be read: {error.strerror}") from error
    except ValueError:
        key = ""
    if not key:
        raise BadConfig(f"{path} has no API key on its first line")
    return key


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {variable: os.environ.pop(variable, None) for variable in _VARIABLES.values()}
    os.environ.update({_VARIABLES[name]: value for name, value in values.items()})
    try:
        yield
    finally:
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value
