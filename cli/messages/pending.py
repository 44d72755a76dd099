"""`duemq get`, `ls`, `reschedule` and `deliver-now`, and the filters that `ls` shares with `cancel` and `dlq ls`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from duemq.cli import completion
from duemq.cli.messages.story import show_story
from duemq.cli.output import Wide, echo_fields, echo_headers, echo_json, echo_table, instant_text, payload_text
from duemq.cli.session import AsJson, Url, connected, examples
from duemq.cli.times import LEVEL, Zone, instant, when
from duemq.model.printable import escaped
from duemq.model.timing import format_ms

if TYPE_CHECKING:
    from duemq.client import Message, MessageState

IdOrName = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The message's id, or the name you gave it.", autocompletion=completion.message_ids
    ),
]
Topic = Annotated[str | None, typer.Option(help="Only in this topic.", autocompletion=completion.topics)]
Status = Annotated[
    Literal["scheduled", "delivered", "cancelled", "dead"] | None, typer.Option(help="Default: scheduled.")
]
Key = Annotated[str | None, typer.Option(help="Only with this key.")]
Label = Annotated[str | None, typer.Option(help="Only with this label.")]
DueFrom = Annotated[str | None, typer.Option(help="Due at or after: RFC 3339 with a zone, or epoch ms.")]
DueTo = Annotated[str | None, typer.Option(help="Due before.")]
TopicPrefix = Annotated[str | None, typer.Option(help="Only in topics whose names have this prefix.")]
NamePrefix = Annotated[str | None, typer.Option(help="Only with names that have this prefix.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
Rate = Annotated[float | None, typer.Option(min=0.01, help="Messages per second. Default: no limit.")]
Everything = Annotated[bool, typer.Option("--all", help="Show all, without a limit.")]

GET_EXAMPLES = examples(
    "duemq get ID",
    "duemq get ID --payload > payload.bin",
    "duemq get order-42 --json | jq .status",
    "duemq get order-42 --story",
)
LS_EXAMPLES = examples(
    "duemq ls --topic orders",
    "duemq ls --label eu --due-to 2031-01-01T00:00:00Z --all --json",
    "duemq ls --topic orders | cut -f1 | duemq cancel -",
)
RESCHEDULE_EXAMPLES = examples("duemq reschedule ID --after 1h", "duemq reschedule ID --at 2031-01-01T08:00:00+01:00")
DELIVER_NOW_EXAMPLES = examples("duemq deliver-now ID")


def get(
    message: IdOrName,
    payload: Annotated[bool, typer.Option("--payload", help="Print only the payload, byte for byte.")] = False,
    story: Annotated[bool, typer.Option("--story", help="Show what destinations and consumers did with it.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a message: its place, its due time, its outcome."""
    with connected(url, as_json) as client:
        if story:
            show_story(client.story(message), as_json)
            return
        details = client.get(message)
    if payload:
        sys.stdout.buffer.write(details.payload or b"")
    else:
        show(details, as_json)


def ls(
    topic: Topic = None,
    status: Status = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    limit: Limit = 100,
    everything: Everything = False,
    wide: Wide = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List messages, soonest first. In a pipe: tab-separated without a heading; with --json one line for each."""
    with connected(url, as_json) as client:
        messages = client.list(
            page_size=page_size(limit, everything),
            **filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix, status),
        )
        show_list(messages, None if everything else limit, as_json, wide, ("DUE", "KEY", "ID", "TOPIC"))


def reschedule(
    message: IdOrName,
    after: Annotated[str | None, typer.Option(help="Due after a delay from now: 90s, 2h30m, PT90S.")] = None,
    at: Annotated[str | None, typer.Option(help="Due at a time: RFC 3339, or epoch ms.")] = None,
    level: Annotated[int | None, typer.Option(min=1, help=LEVEL)] = None,
    zone: Zone = None,
    shift_expiry: Annotated[bool, typer.Option("--shift-expiry", help="Move its expiry by the same amount.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Move a message to another time. Its id stays the same."""
    if [after, at, level].count(None) != 2:
        raise typer.BadParameter("give one of --after, --at and --level", param_hint="--after")
    to = when(after, at, level, zone)
    with connected(url, as_json) as client:
        moved = client.reschedule(message, shift_expiry=shift_expiry, **to)
    tell(moved, as_json)


def deliver_now(message: IdOrName, url: Url = None, as_json: AsJson = False) -> None:
    """Deliver a message at once instead of when it is due."""
    with connected(url, as_json) as client:
        sent = client.deliver_now(message)
    tell(sent, as_json)


def filters(
    topic: str | None,
    key: str | None,
    label: str | None,
    due_from: str | None,
    due_to: str | None,
    topic_prefix: str | None,
    name_prefix: str | None,
    status: str | None = None,
) -> dict[str, Any]:
    """The given filter options, in the SDK's form."""
    due = {"due_from": instant(due_from, "--due-from"), "due_to": instant(due_to, "--due-to")}
    options = {"topic": topic, "key": key, "label": label, "status": status, **due}
    options |= {"topic_prefix": topic_prefix, "name_prefix": name_prefix}
    return {name: value for name, value in options.items() if value is not None}


def page_size(limit: int, everything: bool) -> int:
    """The size of a page: one message more than is shown, to find out whether there are more."""
    return 1000 if everything else min(limit + 1, 1000)


def show_list(listing: Iterable[Message], limit: int | None, as_json: bool, wide: bool, short: Sequence[str]) -> None:
    """Print messages. `limit`: None shows all. `short`: the columns in a terminal, unless `wide`."""
    shown = iter(listing)
    messages = islice(shown, limit)
    if as_json:
        for message in messages:
            echo_json(message.state.raw)
    else:
        columns = ("ID", "STATUS", "TOPIC", "DUE", "KEY", "LABELS", *(("REASON",) if "REASON" in short else ()))
        echo_table(columns, (_row(message)[: len(columns)] for message in messages), short=short, wide=wide)
    if next(shown, None) is not None:
        typer.echo(f"There are more than {limit}: use --all, or --limit.", err=True)


def show(message: Message, as_json: bool) -> None:
    """Print the whole message."""
    if as_json:
        echo_json(message.state.raw)
        return
    state = message.state
    ends = {"expires": state.expires_at_ms, "delivered": state.delivered_at_ms}
    ends |= {"cancelled": state.cancelled_at_ms, "dead": state.dead_at_ms}
    fields = {"id": state.id, "name": escaped(state.name or "")} if state.name else {"id": state.id}
    fields |= {"status": state.status, "topic": state.topic, "due": instant_text(state.deliver_at_ms)}
    fields |= {name: instant_text(ms) for name, ms in ends.items() if ms is not None}
    fields |= {"reason": state.reason or "", "key": state.key or "", "labels": ", ".join(state.labels)}
    fields |= {"attempt": str(state.attempt), "payload": payload_text(state.payload, state.is_null)}
    echo_fields(fields)
    echo_headers(state.header_list)
    for line in _history(state):
        typer.echo(line)


def _history(state: MessageState) -> list[str]:
    """A message's recorded changes and failed attempts, oldest first; one line each."""
    events = [(attempt["at_ms"], escaped(attempt["reason"])) for attempt in state.raw.get("attempts", ())]
    for change in state.changes:
        text = change.change.replace("_", " ")
        if change.from_ms is not None and change.to_ms is not None:
            text += f" from {format_ms(change.from_ms)} to {format_ms(change.to_ms)}"
        events.append((change.at_ms, text + (f" by {escaped(change.by)}" if change.by else "")))
    lines = [f"{format_ms(ms)}  {text}" for ms, text in sorted(events, key=itemgetter(0))]
    if left_out := state.raw.get("changes_left_out", 0):
        lines.append(f"{left_out} changes after the first one are no longer recorded")
    return lines


def tell(message: Message, as_json: bool) -> None:
    """Print a message's state in one line."""
    if as_json:
        echo_json(message.state.raw)
    else:
        typer.echo(f"{message.id}  {message.status} to {message.topic}, due {instant_text(message.deliver_at_ms)}")


def _row(message: Message) -> tuple[str, ...]:
    state = message.state
    due, key = format_ms(state.deliver_at_ms), escaped(state.key or "")
    return state.id, state.status, state.topic, due, key, ",".join(state.labels), escaped(state.reason or "")
