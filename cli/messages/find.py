"""`duemq find`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from duemq.cli.messages.pending import (
    DueFrom,
    DueTo,
    Everything,
    Limit,
    NamePrefix,
    Topic,
    TopicPrefix,
    filters,
    page_size,
    show_list,
)
from duemq.cli.output import Wide
from duemq.cli.session import AsJson, Url, connected, examples

EXAMPLES = examples(
    "duemq find --key order-4711",
    "duemq find --key order-4711 --status cancelled --json",
    "duemq find --label eu --topic orders --due-from 2031-01-01T00:00:00Z --due-to 2031-02-01T00:00:00Z",
)


def find(
    key: Annotated[str | None, typer.Option(help="With this key.")] = None,
    label: Annotated[str | None, typer.Option(help="With this label.")] = None,
    topic: Topic = None,
    status: Annotated[
        Literal["scheduled", "delivered", "cancelled", "dead"] | None, typer.Option(help="Default: any.")
    ] = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    old_from: Annotated[str | None, typer.Option("--from", hidden=True)] = None,
    old_to: Annotated[str | None, typer.Option("--to", hidden=True)] = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    limit: Limit = 100,
    everything: Everything = False,
    wide: Wide = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Find messages of any state by key or label, newest first.

    Uses the index: the server's `index.topics` says which topics have one. `duemq ls` needs no index.
    """
    if key is None and label is None:
        raise typer.BadParameter("give a key or a label", param_hint="--key")
    with connected(url, as_json) as client:
        matching = filters(topic, key, label, due_from or old_from, due_to or old_to, topic_prefix, name_prefix, status)
        messages = client.list(page_size=page_size(limit, everything), order="newest", **matching)
        show_list(messages, None if everything else limit, as_json, wide, ("DUE", "STATUS", "KEY", "ID"))
