"""Shared by the commands of `duemq spark`: options, the session, and the display of progress and errors.

Exit codes are those of `duemq` (docs/reference/cli.md): 1 for a failure and for an audit that found violations, 2 for a
wrong command, 7 for rejected rows and for a refusal by the server, 8 for a server that cannot be reached, 130 for
Ctrl-C. An audit or forecast that fails ends with 9, because there 1 is a result.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from duemq.model.errors import DuemqError, Rejected, Unavailable
from duemq.model.timing import parse_duration, parse_instant
from duemq.pipeline.errors import RowsRejected, Stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from duemq.bus.kafka.options import KafkaOptions
    from duemq.pipeline.logs.kafka import JavaKafka
    from duemq.pipeline.spark.progress import Teller

FAILED, REFUSED, UNAVAILABLE, BROKEN, STOPPED = 1, 7, 8, 9, 130

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="DUEMQ_URL", help="Where duemq is.", show_default="http://127.0.0.1:8787"),
]
Master = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master, such as spark://host:7077.", show_default="this machine's cores"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark, such as spark.driver.memory=4g."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Bootstrap = Annotated[str, typer.Option("--kafka", envvar="DUEMQ_KAFKA", help="Kafka's bootstrap servers.")]
KafkaSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-set", metavar="NAME=VALUE",
        help="A setting of duemq's kafka.*: protocol, mechanism, user, password, ca_file, cert_file, key_file; also as "
        "DUEMQ_KAFKA__PASSWORD and so on. Names with the prefix kafka. go to Kafka's Java client: "
        "kafka.sasl.mechanism=OAUTHBEARER.",
    ),
]  # fmt: skip
DeadLetters = Annotated[str, typer.Option(metavar="TOPIC", help="As topics.dead_letter of the servers.")]


def examples(*lines: str) -> str:
    """An epilog with example commands."""
    return "\n".join(("[bold]Examples[/bold]", *(line.replace("[", "\\[") for line in lines)))


def echo_json(document: Any) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def settings_of(pairs: list[str] | None, option: str = "--conf") -> dict[str, str]:
    """The settings in the NAME=VALUE pairs of `option`. Raises BadParameter."""
    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        settings[name] = value
    return settings


def reached(bootstrap: str, pairs: list[str] | None) -> KafkaOptions | JavaKafka:
    """The connection to Kafka from `--kafka-set` and the environment. Raises BadConfig."""
    from duemq.pipeline.logs.kafka import configured

    return configured(bootstrap, settings_of(pairs, "--kafka-set"), os.environ)


def instant_of(text: str, option: str) -> int:
    """The epoch ms for the value of an option. Raises BadParameter."""
    try:
        return parse_instant(text, option, text=True)
    except Rejected as error:
        raise typer.BadParameter(error.detail, param_hint=option) from error


def duration_of(text: str, option: str) -> int:
    """The milliseconds for the value of an option. Raises BadParameter."""
    try:
        return parse_duration(text, option, text=True)
    except Rejected as error:
        raise typer.BadParameter(error.detail, param_hint=option) from error


@contextmanager
def spark_session(
    name: str,
    master: str | None,
    conf: list[str] | None,
    as_json: bool,
    *,
    kafka: bool = False,
    failed: int = FAILED,
    and_then: str = "It can be run again",
) -> Iterator[tuple[SparkSession, Teller]]:
    """A session and a progress display for a command. Errors end the command: see `report_errors`, and `failures_told`
    for `and_then`."""
    settings = settings_of(conf)
    with report_errors(as_json, failed):
        try:
            from duemq.pipeline.spark.failures import failures_told
            from duemq.pipeline.spark.session import running
        except ImportError as error:
            raise DuemqError(f"{error.name} is missing: install duemq-spark") from error
        with telling(as_json) as teller:
            teller.step("starting Spark")
            with running(f"duemq {name}", kafka=kafka, master=master, settings=settings) as spark:
                with failures_told(and_then):
                    yield spark, teller


@contextmanager
def report_errors(as_json: bool, failed: int = FAILED) -> Iterator[None]:
    """Report an error as one line on stderr, with `--json` also as a document on stdout, and end with an exit code;
    `failed` is the default code. Errors that are not duemq's are shown with their traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if not isinstance(error, DuemqError):
            traceback.print_exc()
        typer.secho(f"duemq: {error}", err=True, fg=typer.colors.RED)
        if as_json:
            echo_json({"error": {"kind": type(error).__name__, "detail": str(error)}})
        raise typer.Exit(code_of(error, failed)) from error


def code_of(error: Exception, failed: int = FAILED) -> int:
    from duemq.client.http.errors import Unreachable

    if isinstance(error, Stopped):
        return STOPPED
    if isinstance(error, Rejected | RowsRejected):
        return REFUSED
    return UNAVAILABLE if isinstance(error, Unavailable | Unreachable) else failed


@contextmanager
def telling(as_json: bool) -> Iterator[Teller]:
    """Progress on stderr: a bar on a terminal, otherwise a line per step; nothing with `--json`."""
    from duemq.pipeline.spark.progress import Silent

    if as_json:
        yield Silent()
    elif not sys.stderr.isatty():
        yield ProgressLines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield Bars(progress)


class Bars:
    """See `Teller`: a bar per step, for terminals."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: Any = None

    def step(self, what: str) -> None:
        self._end()
        self._task = self._progress.add_task(what, total=None)

    def share(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def says(self, sentence: str) -> None:
        self._progress.console.print(sentence, highlight=False)

    def _end(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1, total=1)
            self._progress.stop_task(self._task)


class ProgressLines:
    """See `Teller`: a line per step, for logs."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def step(self, what: str) -> None:
        typer.echo(f"{time.monotonic() - self._since:7.1f} s  {what}", err=True)

    def share(self, done: int, total: int) -> None: ...

    def says(self, sentence: str) -> None:
        typer.echo(f"{time.monotonic() - self._since:7.1f} s  {sentence}", err=True)
