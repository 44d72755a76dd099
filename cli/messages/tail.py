"""`duemq tail`"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli import completion
from duemq.cli.output import echo_json, payload_text
from duemq.cli.session import AsJson, Url, connected, examples
from duemq.model.errors import DuemqError
from duemq.model.printable import escaped
from duemq.model.timing import format_ms

if TYPE_CHECKING:
    from duemq.client import Client, Record

EXAMPLES = examples(
    "duemq tail orders",
    "duemq tail orders --from-start --max 10",
    "duemq tail orders --consumer billing --json | jq -r .payload",
)
_LATE_MS = 1000


def tail(
    topic: Annotated[str, typer.Argument(help="The topic to follow.", autocompletion=completion.topics)],
    consumer: Annotated[
        str | None, typer.Option(help="Continue where this consumer stopped, and store its position.")
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Also show records delivered earlier.")] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show messages as they are delivered: due time, lateness, key, payload. Ctrl-C stops it.

    Without --consumer and --from-start only new ones. A lost connection is resumed where it broke.
    With --consumer a record counts as seen once it is printed; after a crash the last ones are printed again.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the position is stored
    with connected(url, as_json) as client:
        place = TailPosition(client, topic, consumer)
        try:
            newest = _newest(client, topic, needed=not (from_start or consumer))
            after = None if from_start or consumer else newest
            for count, record in enumerate(client.tail(topic, None if from_start else consumer, after=after), start=1):
                _print(record, as_json)
                place.reached(record)
                if count == most:
                    break
        except KeyboardInterrupt:
            pass
        finally:
            place.remember()


def _newest(client: Client, topic: str, needed: bool) -> str | None:
    """The end of the topic. If it has no records yet: None, with a note, because a misspelled topic never has any."""
    try:
        newest = client.end(topic)
    except DuemqError:
        if needed:
            raise
        return None  # following the topic retries until the server answers
    if newest is None:
        typer.echo(f"waiting for topic {escaped(topic)}, which has no records yet", err=True)
    return newest


class TailPosition:
    """Stores a consumer's cursor, at most twice a second while records arrive, and at the end."""

    INTERVAL_S = 0.5

    def __init__(self, client: Client, topic: str, consumer: str | None) -> None:
        self._client, self._topic, self._consumer = client, topic, consumer
        self._cursor: str | None = None
        self._next_at = 0.0

    def reached(self, record: Record) -> None:
        self._cursor = record.cursor
        if time.monotonic() >= self._next_at:
            self.remember()

    def remember(self) -> None:
        if self._consumer is None or self._cursor is None:
            return
        self._client.commit(self._topic, self._consumer, self._cursor)
        self._cursor, self._next_at = None, time.monotonic() + self.INTERVAL_S


def _print(record: Record, as_json: bool) -> None:
    if as_json:
        echo_json({**record.raw, "lateness_ms": record.lateness_ms, "cursor": record.cursor})
        return
    due, late = record.due_ms, record.lateness_ms
    if due is None or late is None:
        when = f"{format_ms(record.timestamp_ms)}\t(no due time)"
    else:
        colour = typer.colors.YELLOW if late >= _LATE_MS else typer.colors.GREEN
        # Only a message sent by deliver-now arrives before its due time.
        shown = f"{late:+} ms" if late >= 0 else "now"
        when = f"{format_ms(due)}\t{typer.style(shown, fg=colour)}"
    typer.echo(f"{when}\t{escaped(record.key or '')}\t{payload_text(record.payload, record.is_null)}")
