"""The relay as a command: `celery -A proj.app duemq-relay`, or `python -m duemq.client.celery relay -A proj.app`."""

from __future__ import annotations

from typing import Any, get_args

import click
from celery import Celery
from celery.app.utils import find_app
from celery.bin.base import CeleryCommand

from duemq.client.celery.install import hold_of
from duemq.client.celery.outlet import TIMEOUT_S, CeleryOutlet
from duemq.client.relay.command import MAX_LEASE_S, RelayOptions, run_relay
from duemq.client.relay.lease import LEAST_S, LENGTH_S
from duemq.client.relay.relay import MAX_PAGE, PAGE, NoPlace, Start

EXAMPLES = """
\b
Examples:
  celery -A proj.app duemq-relay
  python -m duemq.client.celery relay -A proj.app
  celery -A proj.app duemq-relay --consumer blue --loglevel DEBUG
"""


def _run(app: Celery, options: RelayOptions) -> None:
    """Raises `ClickException` if the relay was not told where to start."""
    try:
        # When a task is published, at least two thirds of the lease are left: it is renewed in time.
        outlet = CeleryOutlet(app, min(TIMEOUT_S, options.lease_s * 2 / 3))
        run_relay(hold_of(app), outlet, app.connection_for_write().as_uri(), options)
    except NoPlace as error:
        raise click.ClickException(f"{error} (--start)") from error


def _options(command: Any) -> Any:
    for option in (
        click.option("--loglevel", default="INFO", show_default=True, help="Logging level."),
        click.option(
            "--page",
            default=PAGE,
            show_default=True,
            type=click.IntRange(1, MAX_PAGE),
            help="Tasks per page: the most that are published twice after a kill -9.",
        ),
        click.option(
            "--lease",
            "lease_s",
            default=LENGTH_S,
            show_default=True,
            type=click.FloatRange(LEAST_S, MAX_LEASE_S),
            help="Seconds after which another relay takes over from one that died.",
        ),
        click.option("--alone", is_flag=True, help="The consumer has no other relay: take no lease."),
        click.option("--consumer", default="celery-relay", show_default=True, help="Consumer whose position is used."),
        click.option(
            "--start",
            type=click.Choice(get_args(Start)),
            help="Start of a consumer without a position: at the first task in the topic, or after the last "
            "one. Without this option, it starts only in an empty topic.",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=CeleryCommand, name="duemq-relay", epilog=EXAMPLES)
@_options
@click.pass_context
def duemq_relay(ctx: Any, /, **options: Any) -> None:
    """Send tasks held by duemq to the broker when they are due.

    One of several relays works; another takes over when it ends or dies.
    """
    _run(ctx.obj.app, RelayOptions(**options))


@click.group()
def main() -> None:
    """Celery tasks held by duemq."""


@main.command(epilog=EXAMPLES)
@click.option("-A", "--app", "name", required=True, help="The app, as for `celery -A`.")
@_options
def relay(name: str, **options: Any) -> None:
    """Send tasks held by duemq to the broker when they are due.

    One of several relays works; another takes over when it ends or dies.
    """
    _run(find_app(name), RelayOptions(**options))
