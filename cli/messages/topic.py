"""`duemq topic ls`, `get` and `tail`"""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli import completion
from duemq.cli.messages import tail
from duemq.cli.output import Wide, echo_fields, echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples

app = typer.Typer(no_args_is_help=True, help="Show topics: their records, and how late these were.")


@app.command("ls", epilog=examples("duemq topic ls", "duemq topic ls --json"))
def list_topics(wide: Wide = False, url: Url = None, as_json: AsJson = False) -> None:
    """List the topics and their figures."""
    with connected(url, as_json) as client:
        topics = client.topics()
    if as_json:
        echo_json({"topics": [topic.raw for topic in topics]})
        return
    figures = [name for name, value in topics[0].raw.items() if isinstance(value, int | float)] if topics else []
    echo_table(
        ("TOPIC", *(name.upper() for name in figures)),
        ((topic.name, *(str(topic.raw.get(name, "")) for name in figures)) for topic in topics),
        wide=wide,
    )


@app.command("get", epilog=examples("duemq topic get orders"))
def show_topic(
    topic: Annotated[str, typer.Argument(help="The topic's name.", autocompletion=completion.topics)],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show one topic: partitions, counts, lateness."""
    with connected(url, as_json) as client:
        details = client.topic(topic)
    if as_json:
        echo_json(details.raw)
    else:
        echo_fields(details.raw)


app.command("tail", epilog=tail.EXAMPLES)(tail.tail)
