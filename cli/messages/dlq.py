"""`duemq dlq ls` and `redrive`"""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.exit_codes import Exit
from duemq.cli.messages.pending import (
    DueFrom,
    DueTo,
    Everything,
    Key,
    Label,
    Limit,
    Topic,
    filters,
    page_size,
    show_list,
    tell,
)
from duemq.cli.session import AsJson, Url, connected, examples, failure
from duemq.model.errors import DuemqError

app = typer.Typer(no_args_is_help=True, help="Look after the dead letters: messages that could not be delivered.")


@app.command("ls", epilog=examples("duemq dlq ls", "duemq dlq ls --topic orders --all --json"))
def list_dead(
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    limit: Limit = 100,
    everything: Everything = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters and the reason of each. With --json a line for each."""
    with connected(url, as_json) as client:
        messages = client.dlq(page_size=page_size(limit, everything), **filters(topic, key, label, due_from, due_to))
        show_list(messages, None if everything else limit, as_json, reasons=True)


@app.command(
    "redrive",
    epilog=examples("duemq dlq redrive ID", "duemq dlq ls --topic orders | cut -f1 | xargs duemq dlq redrive"),
)
def redrive(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The dead letters' ids.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters again. Each is tried; the exit code is the highest of theirs."""
    worst = Exit.DONE
    with connected(url, as_json) as client:
        for message in ids:
            try:
                tell(client.redrive(message), as_json)
            except DuemqError as error:
                worst = max(worst, Exit(failure(error, as_json).exit_code))
                if worst is Exit.UNAVAILABLE:
                    break
    raise typer.Exit(worst)
