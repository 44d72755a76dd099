"""`duemq cancel`"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from duemq.cli import completion
from duemq.cli.confirmation import confirm, must_ask
from duemq.cli.exit_codes import BY_STATUS, Exit
from duemq.cli.messages.pending import DueFrom, DueTo, Key, Label, NamePrefix, Topic, TopicPrefix, filters
from duemq.cli.output import echo_json, instant_text
from duemq.cli.session import AsJson, Url, connected, examples

if TYPE_CHECKING:
    from duemq.client import CancelReport, Client
    from duemq.client.http.requests import Filter

EXAMPLES = examples(
    "duemq cancel ID",
    "duemq cancel ID1 ID2 ID3",
    "duemq cancel --topic orders --label eu --yes",
    "duemq ls --topic orders | cut -f1 | duemq cancel -",
)
_COUNTED = 1000


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Ids or names; - reads them from stdin, one a line.",
            autocompletion=completion.message_ids,
        ),
    ] = None,
    topic: Topic = None,
    key: Key = None,
    label: Label = None,
    due_from: DueFrom = None,
    due_to: DueTo = None,
    topic_prefix: TopicPrefix = None,
    name_prefix: NamePrefix = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before cancelling by filter.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the answer of one message.")
    ] = 10.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel messages and report the true outcome of each.

    Exit code for one message: 0 cancelled (now or before), 3 already delivered, 4 unknown, 5 not known yet. For
    several: the highest of theirs.
    """
    chosen = filters(topic, key, label, due_from, due_to, topic_prefix, name_prefix)
    if bool(ids) == bool(chosen):
        raise typer.BadParameter("give either ids, or a filter such as --topic", param_hint="ID")
    id_list = [line.strip() for line in sys.stdin if line.strip()] if ids == ["-"] else ids
    with connected(url, as_json) as client:
        if id_list and len(id_list) == 1:
            cancelled = client.cancel(id_list[0], wait_s=wait)
            if as_json:
                echo_json(cancelled.raw)
            else:
                typer.echo(f"{cancelled.id}  cancelled, {instant_text(cancelled.cancelled_at_ms)}")
            return
        if id_list is not None:
            report = client.cancel_many(id_list)
        else:
            _confirm(client, chosen, yes, as_json)
            report = client.cancel_many(filter=cast("Filter", chosen))
    raise typer.Exit(_tell(report, as_json))


def _confirm(client: Client, chosen: dict[str, Any], yes: bool, as_json: bool) -> None:
    if not must_ask(yes, as_json):
        return
    count = sum(1 for _ in islice(client.list(page_size=_COUNTED, **chosen), _COUNTED))
    many = f"{_COUNTED} or more messages" if count == _COUNTED else f"{count} messages"
    confirm(f"Cancel {many} ({', '.join(f'{name} {value}' for name, value in chosen.items())})?", yes, as_json)


def _tell(report: CancelReport, as_json: bool) -> Exit:
    if as_json:
        results = [{"id": result.id, "status": result.status} for result in report.results]
        more = {"truncated": True} if report.truncated else {}
        echo_json({"results": results, "counts": dict(report.counts), **more})
    else:
        for result in report.results:
            typer.echo(f"{result.id}\t{result.status}")
        counts = [f"{count} {status.replace('_', ' ')}" for status, count in report.counts.items() if count]
        typer.echo(", ".join(counts) or "There was nothing to cancel.", err=True)
        if report.truncated:
            typer.echo(f"Listed are the first {len(report.results):,} of {sum(report.counts.values()):,}.", err=True)
    statuses = [status for status, count in report.counts.items() if count]
    return max((BY_STATUS.get(status, Exit.ERROR) for status in statuses), default=Exit.DONE)
