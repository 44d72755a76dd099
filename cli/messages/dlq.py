"""`duemq dlq ls`, `get`, `redrive` and `purge`"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.cli import completion
from duemq.cli.confirmation import Yes
from duemq.cli.exit_codes import Exit
from duemq.cli.job_progress import begin_job
from duemq.cli.messages import pending
from duemq.cli.messages.pending import (
    DueFrom,
    DueTo,
    Everything,
    Key,
    Label,
    Limit,
    NamePrefix,
    Rate,
    Topic,
    TopicPrefix,
)
from duemq.cli.output import Wide, echo_fields, echo_headers, echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples, failure
from duemq.cli.times import instant
from duemq.model.errors import DuemqError
from duemq.model.printable import escaped
from duemq.model.topics.group_topics import dead_letter_topic

if TYPE_CHECKING:
    from duemq.client import Admin

_WHAT = "dead letters"

app = typer.Typer(no_args_is_help=True, help="Manage dead letters: messages that could not be delivered.")

Source = Annotated[
    str | None,
    typer.Option(
        help="Dead letters in this topic instead of duemq's own.", metavar="TOPIC", autocompletion=completion.topics
    ),
]
Group = Annotated[str | None, typer.Option(help="Dead letters of a consumer group, in dlq.GROUP.", metavar="GROUP")]
DeadFrom = Annotated[str | None, typer.Option(help="Died at or after: RFC 3339 with a zone, or epoch ms.")]
DeadTo = Annotated[str | None, typer.Option(help="Died before.")]
Reason = Annotated[str | None, typer.Option(help="Only those that died for this reason.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the job, with a bar.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="The dead letters' ids; in a topic PARTITION:OFFSET.")
]


@app.command(
    "ls", epilog=examples("duemq dlq ls", "duemq dlq ls --topic orders --all --json", "duemq dlq ls --group g")
)
def list_dead(
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    source: Source = None,
    group: Group = None,
    limit: Limit = 100,
    everything: Everything = False,
    wide: Wide = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters with the reason of each. With --json one line for each."""
    most = None if everything else limit
    chosen = pending.filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix)
    with connected(url, as_json) as client:
        if (whence := _source(source, group)) is not None:
            if chosen:
                raise typer.BadParameter("a topic of dead letters cannot be filtered", param_hint="--source")
            _list_topic(client, whence, most, as_json, wide)
            return
        messages = client.dlq(page_size=pending.page_size(limit, everything), **chosen)
        pending.show_list(messages, most, as_json, wide, ("DUE", "KEY", "ID", "REASON"))


@app.command("get", epilog=examples("duemq dlq get ID", "duemq dlq get 0:17 --group billing"))
def show(
    message: Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id; in a topic PARTITION:OFFSET.")],
    source: Source = None,
    group: Group = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: its reason, and each recorded attempt."""
    whence = _source(source, group)
    with connected(url, as_json) as client:
        if whence is not None:
            from duemq.client.http.fields import read_header_list

            letter = client.dead_letter_in(whence, message)
            if as_json:
                echo_json(letter)
            else:
                echo_fields({name: value for name, value in letter.items() if not name.startswith("header")})
                echo_headers(read_header_list(letter))
            return
        details = client.get(message)
    pending.show(details, as_json)


@app.command(
    "redrive",
    epilog=examples(
        "duemq dlq redrive ID", "duemq dlq redrive --topic orders --dead-from 2031-01-01T00:00:00Z --dry-run",
        "duemq dlq redrive --dead-from 2031-01-01T00:00:00Z --rate 2000 --wait",
        "duemq dlq redrive --group billing --dead-from 2031-01-01T00:00:00Z --to orders.again",
    ),
)  # fmt: skip
def redrive(
    ids: Ids = None,
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    dead_from: DeadFrom = None,
    dead_to: DeadTo = None,
    reason: Reason = None,
    source: Source = None,
    group: Group = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Redrive to this topic. Default: the topic of the letter; of dlq.destination.NAME, that destination.",
            metavar="TOPIC",
        ),
    ] = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters again: by ids, or in a job all that match a filter, which must include a time.

    Each id is tried; the exit code is the highest of their codes.
    """
    chosen = _filter(topic, key, label, due_from, due_to, topic_prefix, name_prefix, dead_from, dead_to, reason)
    whence = _source(source, group)
    with connected(url, as_json) as client:
        if ids and whence is None and not (rate or dry_run or wait or chosen):
            raise typer.Exit(_one_by_one(client, ids, to, as_json))
        fields = _job(ids, chosen, whence, rate) | ({} if to is None else {"topic": to})
        raise typer.Exit(begin_job(client, "redrive", fields, _WHAT, dry_run, wait, yes, as_json))


@app.command(
    "purge",
    epilog=examples(
        "duemq dlq purge ID", "duemq dlq purge --dead-to 2031-01-01T00:00:00Z --dry-run",
        "duemq dlq purge --group billing --dead-to 2031-01-01T00:00:00Z",
    ),
)  # fmt: skip
def purge(
    ids: Ids = None,
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    dead_from: DeadFrom = None,
    dead_to: DeadTo = None,
    reason: Reason = None,
    source: Source = None,
    group: Group = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """End dead letters for good, in a job: by ids, or all that match a filter, which must include a time.

    A topic of dead letters is purged up to a time, --dead-to.
    """
    chosen = _filter(topic, key, label, due_from, due_to, topic_prefix, name_prefix, dead_from, dead_to, reason)
    with connected(url, as_json) as client:
        fields = _job(ids, chosen, _source(source, group), rate)
        raise typer.Exit(begin_job(client, "purge", fields, _WHAT, dry_run, wait, yes, as_json))


def _source(source: str | None, group: str | None) -> str | None:
    if source is not None and group is not None:
        raise typer.BadParameter("either a topic, or a group", param_hint="--source")
    return source if group is None else dead_letter_topic(group)


def _filter(
    topic: str | None,
    key: str | None,
    label: str | None,
    due_from: str | None,
    due_to: str | None,
    topic_prefix: str | None,
    name_prefix: str | None,
    dead_from: str | None,
    dead_to: str | None,
    reason: str | None,
) -> dict[str, Any]:
    more = {"dead_from": instant(dead_from, "--dead-from"), "dead_to": instant(dead_to, "--dead-to"), "reason": reason}
    more = {name: value for name, value in more.items() if value is not None}
    return pending.filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix) | more


def _job(ids: list[str] | None, chosen: dict[str, Any], source: str | None, rate: float | None) -> dict[str, Any]:
    if bool(ids) == bool(chosen):
        raise typer.BadParameter("give either ids, or a filter such as --dead-from", param_hint="ID")
    if chosen and source is None and not any(name.endswith(("_from", "_to")) for name in chosen):
        raise typer.BadParameter("a filter also needs a time of death or a due time", param_hint="--dead-from")
    fields: dict[str, Any] = {"ids": ids} if ids else {"filter": chosen}
    fields |= {} if source is None else {"source": source}
    return fields | ({} if rate is None else {"rate": rate})


def _one_by_one(client: Admin, ids: list[str], to: str | None, as_json: bool) -> Exit:
    worst = Exit.DONE
    for message in ids:
        try:
            pending.tell(client.redrive(message, to), as_json)
        except DuemqError as error:
            worst = max(worst, Exit(failure(error, as_json).exit_code))
            if worst is Exit.UNAVAILABLE:
                break
    return worst


def _list_topic(client: Admin, topic: str, limit: int | None, as_json: bool, wide: bool) -> None:
    letters = client.dead_letters_in(topic, page_size=1000 if limit is None else min(limit, 1000))
    chosen = islice(letters, limit)
    if as_json:
        for letter in chosen:
            echo_json(letter)
        return
    rows = (
        (letter["id"], letter["dead_at"], origin.get("topic") or "?", str(letter["redrives"]),
         escaped(origin.get("reason") or ""), escaped(origin.get("error") or ""))
        for letter in chosen
        for origin in (letter["origin"] or {},)
    )  # fmt: skip
    echo_table(("ID", "DIED", "TOPIC", "REDRIVES", "REASON", "ERROR"), rows, wide=wide)
