"""The blocks of commands and programs in the pages: which tests run them, and why the others are not run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
LANGUAGES: Final = ("sh", "bash", "python", "sql", "java")
"""Of blocks that a reader runs; the others show data, settings and output."""
_BLOCK: Final = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class Served(NamedTuple):
    """What the reader of a page has before its first block."""

    settings: str = ""
    """Of the server, in addition to the TOML blocks of the page."""
    files: Mapping[str, str] = {}
    """Text by name."""
    names: str = ""
    """A program that makes the names of blocks in Python."""
    starts: bool = False
    """Whether the page itself starts the server. Its port is replaced, and so is its data folder `/var/lib/duemq`."""
    left_out: tuple[str, ...] = ()
    """How the blocks begin that are not run; `NOT_RUN` says why."""


_TASK: Final = """
from celery import shared_task

orders = range(3)

@shared_task(name="remind")
def remind(order): ...
"""
_DEAD_LETTERS: Final = """
from datetime import timedelta

from duemq.client import Admin, Draft

a_ms = timedelta(milliseconds=1)
with Admin() as admin:
    while not list(admin.dlq(topic="orders")):  # one that is a ms late expires
        admin.send("orders", "late", deliver_after=a_ms, expires_after=a_ms)
    for topic in ("dlq.billing", "payments.DLT"):
        headers = {"x-duemq-topic": "orders"} if topic == "dlq.billing" else {}
        admin.send_batch([Draft(topic, "dead", headers=headers) for _ in range(18)])
"""

SERVED: Final[Mapping[str, Served]] = {
    "start/order-timeouts.md": Served(),
    "guides/find.md": Served(),
    "guides/sdk.md": Served(),
    "guides/celery.md": Served(
        names=_TASK,
        left_out=("celery -A",),
    ),
    "guides/dead-letters.md": Served(names=_DEAD_LETTERS),
    "guides/destinations.md": Served(
        settings='[relay]\nprivate_networks = ["127.0.0.0/8"]\n',
        files={
            "billing.toml": 'signing_secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]',
            "password.txt": "secret",
        },
        left_out=("pip install",),
    ),
    "guides/receive.md": Served(),
    "guides/dramatiq.md": Served(left_out=("dramatiq ",)),
    "operate/security.md": Served(starts=True),
    "operate/tls.md": Served(starts=True),
    "reference/api.md": Served(files={"picture.png": "a picture"}),
    "reference/cli.md": Served(
        settings='[index]\ntopics = ["*"]\n',
        files={"photo.jpg": "a photo"},
        left_out=("duemq profile",),
    ),
}
"""Pages that `tests/e2e/test_pages.py` runs from the first block to the last, against a server for each page."""

ENDLESS: Final = (
    "from duemq.client import Client\n\nwith Client() as client:\n    # Without",
    "import asyncio\n\nfrom duemq.client import AsyncClient",
    "curl -sN ",
    "duemq tail ",
    "duemq serve ",
    "DUEMQ_HTTP__ACCESS=keys duemq serve ",
    "python3 - <<",
)
"""How blocks begin that run until they are stopped."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "../README.md": "tests/e2e/test_newcomer.py",
    "guides/migrate-rabbitmq.md": "tests/e2e/test_migrate_rabbitmq.py",
}
"""Pages with a test for themselves."""

PARTLY: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "guides/delay-files.md": (
        "tests/functional/imports/test_row_rules.py",
        ("import pyarrow as pa", 'df["window"]', "COPY ("),
    ),
    "guides/migrate-rocketmq.md": (
        "tests/e2e/test_migrate_rocketmq.py",
        ("duemq destination add", "curl", "from duemq.client"),
    ),
    "guides/pipeline/history.md": ("tests/functional/spark/test_history_table.py", ("SET VARIABLE files",)),
    "operate/kubernetes.md": (
        "tests/e2e/test_kubernetes.py",
        (
            "docker build",
            "kubectl create namespace",
            "helm upgrade",
            "kubectl --namespace mail exec",
            "kubectl --namespace mail port-forward",
        ),
    ),
    "operate/lag.md": ("tests/functional/lag/test_lag_cli.py", ("python examples/lag.py",)),
}
"""Pages of which a test runs some blocks: the test, and how these blocks begin."""

_KAFKA: Final = "needs a Kafka with topics of the page; the tests of the feature start one"
_SPARK: Final = "needs Spark and data of a site; the tests of the feature start it"
_ROOT: Final = "needs root, systemd and the machines of a site"
_LONG: Final = "runs for minutes or hours"
NOT_RUN: Final[Mapping[str, str]] = {
    "../CONTRIBUTING.md": _LONG,
    "explain/benchmarks.md": _LONG,
    "explain/chaos.md": _LONG,
    "guides/celery.md": "its workers need a broker of Celery; tests/e2e/test_celery.py runs the same project",
    "guides/consumers.md": _KAFKA,
    "guides/delay-files.md": "the other blocks need Spark, and a folder of a site",
    "guides/destinations.md": "the second block starts the server that the test has started",
    "guides/destinations/http.md": "verifies requests of an endpoint; tests/contract/test_outlet.py has one",
    "guides/dramatiq.md": "its workers need a broker of Dramatiq; tests/e2e/test_dramatiq.py runs the same project",
    "guides/idempotency.md": _KAFKA,
    "guides/kafka.md": _KAFKA,
    "guides/migrate-rocketmq.md": "the Java is what one has before",
    "guides/pipeline.md": _SPARK,
    "guides/pipeline/airflow.md": "needs Airflow",
    "guides/pipeline/audit.md": _SPARK,
    "guides/pipeline/forecast.md": _SPARK,
    "guides/pipeline/history.md": _SPARK,
    "guides/pipeline/logins.md": "needs a Kerberos realm or a cloud",
    "guides/pipeline/mass.md": _SPARK,
    "guides/pipeline/migrate.md": _SPARK,
    "guides/pipeline/platforms.md": "needs an account of a platform",
    "guides/pipeline/schedule.md": _SPARK,
    "guides/pipeline/send.md": _SPARK,
    "guides/pipeline/spark_source.md": _SPARK,
    "operate/cluster.md": _KAFKA,
    "operate/kubernetes.md": "needs a cluster with a StatefulSet, or prints a key",
    "operate/lag.md": _KAFKA,
    "operate/operations.md": _ROOT,
    "operate/production.md": _ROOT,
    "reference/cli.md": "the first block names servers of a site",
}
"""Pages whose blocks no test runs as printed, each with the reason."""


class Block(NamedTuple):
    page: str
    language: str
    code: str


def is_run(block: Block) -> bool:
    """Whether a test runs the block as printed."""
    _, begins = PARTLY.get(block.page, ("", ()))
    if (served := SERVED.get(block.page)) is not None:
        return not block.code.startswith(served.left_out)
    return block.page in ELSEWHERE or block.code.startswith(begins)


def pages() -> list[Path]:
    """Every page that has blocks, but for decisions."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.parent.name != "adr"]


def blocks(page: str | None = None) -> Iterator[Block]:
    """Those of one page of `docs/`, or of all, that a reader runs."""
    for path in pages() if page is None else [ROOT / "docs" / page]:
        name = str(path.relative_to(ROOT / "docs")) if path.is_relative_to(ROOT / "docs") else f"../{path.name}"
        for _, language, code in _BLOCK.findall(path.read_text()):
            if language in LANGUAGES:
                yield Block(name, language, dedent(code))
