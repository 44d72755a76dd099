"""The story of a message, as `duemq get --story` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from duemq.cli.output import echo_json, echo_table, instant_text
from duemq.model.printable import escaped


def show_story(document: dict[str, Any], as_json: bool) -> None:
    """Print the message's position in its topic, and each reader's work on it: a row per event, and a row for the
    current state."""
    if as_json:
        echo_json(document)
        return
    place = document["place"]
    at = f", partition {place['partition']}, offset {place['offset']}" if place else ""
    without = "" if document["readers"] else "; no known reader"
    typer.echo(f"{document['status']}: topic {escaped(document['topic'])}{at}{without}")
    echo_table(("READER", "WHEN", "STATE", "DETAIL"), (row for one in document["readers"] for row in _rows(one)))
    if document["hidden_readers"] or not document["complete"]:
        typer.echo("Incomplete: this key may not see some readers, or too much would have to be read.", err=True)


def _rows(reader: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for event in reader["events"]:
        match event["event"]:
            case "dead":
                detail = f"{event['reason']}: {event['topic']} {event['letter'] or ''}"
            case "redriven":
                detail = f"to {event['topic']} as {event['id']}, by {event['by']}"
            case _:
                detail = event["error"]
        yield reader["group"], instant_text(event["at_ms"]), event["event"], detail
    retry = reader["retry"]
    at = instant_text(retry["deliver_at_ms"]) if retry else ""
    yield reader["group"], at, reader["state"], reader["detail"]
