"""`duemq config show`"""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.output import echo_json, echo_table
from duemq.cli.session import AsJson, examples, failure
from duemq.cli.wiring import startup
from duemq.model.errors import DuemqError
from duemq.model.printable import escaped

app = typer.Typer(help="Show the settings of a server.", no_args_is_help=True)


@app.command(
    "show",
    epilog=examples(
        "duemq config show --config /etc/duemq/duemq.toml",
        "duemq config show --all --json | jq -r '.settings[] | select(.key == \"limits.max_delay\") | .value'",
    ),
)
def show(
    config: startup.Config = None,
    data: startup.Data = None,
    listen: startup.Listen = None,
    further: startup.Further = None,
    everything: Annotated[bool, typer.Option("--all", help="Those with their defaults, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings that a server would start with, and the source of each: an option, a variable, a line of the
    file. A source after "not" is overridden. The command does not ask a server.

    Run it as the server runs: as its user, with its variables and options. Secrets are not shown.
    """
    from duemq.cli.settings.origins import origins
    from duemq.cli.settings.settings import Settings

    try:
        layers = Settings.layers(config, startup.nested_options({"data": data, "listen": listen}, further))
        shown = [one for one in origins(layers) if everything or one.sources]
    except DuemqError as error:
        raise failure(error, as_json) from error
    for sentence in Settings.strange_variables():
        typer.echo(f"duemq: {sentence}", err=True)
    if as_json:
        rows = [{"key": one.key, "value": one.value, "sources": one.sources or ("default",)} for one in shown]
        echo_json({"file": layers.path and str(layers.path), "settings": rows})
    elif shown:
        echo_table(
            ("KEY", "VALUE", "FROM"),
            ((one.key, escaped(one.text), ", not ".join(one.sources) or "default") for one in shown),
        )
    else:
        typer.echo("every setting has its default; --all shows them", err=True)
