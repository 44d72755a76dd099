"""The relay as a command: `celery -A proj.app duemq-relay`, or `python -m duemq.client.celery relay -A proj.app`."""

from __future__ import annotations

import logging
import signal
from typing import Any, get_args

import click
from celery import Celery
from celery.app.utils import find_app
from celery.bin.base import CeleryCommand

from duemq.client.celery.install import hold_of
from duemq.client.celery.outlet import BrokerOutlet
from duemq.client.lease import LEAST_S, LENGTH_S, Alone, Lease
from duemq.client.relay import MOST_PAGE, PAGE, NoPlace, Relay, Start

EXAMPLES = """
\b
Examples:
  celery -A proj.app duemq-relay
  python -m duemq.client.celery relay -A proj.app
  celery -A proj.app duemq-relay --consumer blue --loglevel DEBUG
"""


def run_relay(
    app: Celery, consumer: str, page: int, lease: float, alone: bool, start: Start | None, loglevel: str
) -> None:
    """Until SIGTERM or SIGINT. Raises `ClickException` where it was not told where to begin."""
    logging.basicConfig(level=loglevel.upper(), format="[%(asctime)s: %(levelname)s] %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    hold = hold_of(app)
    own = Alone() if alone else Lease(hold.client, hold.topic, consumer, length_s=lease)
    relay = Relay(hold.client, hold.topic, consumer, BrokerOutlet(app), page=page, lease=own, start=start)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: relay.stop())
    click.echo(f"relay: from topic {hold.topic} to {app.connection_for_write().as_uri()}", err=True)
    try:
        relay.run()
    except NoPlace as error:
        raise click.ClickException(f"{error} (--start)") from error
    finally:
        hold.close()
    click.echo(f"relay: stopped; {relay.published} tasks published, {relay.buried} to the dead letters", err=True)


def _options(command: Any) -> Any:
    for option in (
        click.option("--loglevel", default="INFO", show_default=True, help="Logging level."),
        click.option(
            "--page",
            default=PAGE,
            show_default=True,
            type=click.IntRange(1, MOST_PAGE),
            help="Tasks per page: so many at most are published twice after a kill -9.",
        ),
        click.option(
            "--lease",
            default=LENGTH_S,
            show_default=True,
            type=click.FloatRange(LEAST_S, 600),
            help="Seconds after which another relay takes over from one that died.",
        ),
        click.option("--alone", is_flag=True, help="No other relay of the consumer runs: take no lease."),
        click.option("--consumer", default="celery-relay", show_default=True, help="Whose place in the topic it is."),
        click.option(
            "--start",
            type=click.Choice(get_args(Start)),
            help="Where a consumer without a place begins: with the first task that the topic has, or behind the last "
            "one. Without it, only in a topic that has none.",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=CeleryCommand, name="duemq-relay", epilog=EXAMPLES)
@_options
@click.pass_context
def duemq_relay(
    ctx: Any, consumer: str, page: int, lease: float, alone: bool, start: Start | None, loglevel: str
) -> None:
    """Give tasks that duemq held to the broker when they are due.

    Of several relays one works; another one takes over when it ends or dies.
    """
    run_relay(ctx.obj.app, consumer, page, lease, alone, start, loglevel)


@click.group()
def main() -> None:
    """Celery tasks held by duemq."""


@main.command(epilog=EXAMPLES)
@click.option("-A", "--app", "name", required=True, help="The app, as for `celery -A`.")
@_options
def relay(name: str, consumer: str, page: int, lease: float, alone: bool, start: Start | None, loglevel: str) -> None:
    """Give tasks that duemq held to the broker when they are due.

    Of several relays one works; another one takes over when it ends or dies.
    """
    run_relay(find_app(name), consumer, page, lease, alone, start, loglevel)
