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

SERVED: Final = ("start/order-timeouts.md", "guides/find.md", "guides/sdk.md", "reference/api.md")
"""Pages that `tests/e2e/test_pages.py` runs from the first block to the last, against a server for each page."""

ENDLESS: Final = (
    "from duemq.client import Client\n\nwith Client() as client:\n    # Without",
    "import asyncio\n\nfrom duemq.client import AsyncClient",
    "curl -sN ",
)
"""How blocks begin that run until they are stopped."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "../README.md": "tests/e2e/test_newcomer.py",
    "guides/migrate-rabbitmq.md": "tests/e2e/test_migrate_rabbitmq.py",
}
"""Pages with a test for themselves."""

PARTLY: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "guides/delay-files.md": ("tests/functional/imports/test_row_rules.py", ("import pyarrow as pa",)),
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
    "guides/celery.md": "needs a broker of Celery; tests/e2e/test_celery.py runs the same project",
    "guides/consumers.md": _KAFKA,
    "guides/dead-letters.md": "needs dead letters and their ids; tests/e2e/test_dead_letters.py makes some",
    "guides/delay-files.md": "the other blocks need files of a site",
    "guides/destinations.md": "three terminals; tests/e2e/test_destinations.py runs the same commands",
    "guides/destinations/http.md": "verifies requests of an endpoint; tests/contract/test_outlet.py has one",
    "guides/dramatiq.md": "needs a broker of Dramatiq; tests/e2e/test_dramatiq.py runs the same project",
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
    "operate/security.md": "starts a server for others; tests/e2e/test_api_keys.py runs the same commands",
    "operate/tls.md": "starts servers for others; tests/e2e/test_tls.py runs the same commands",
    "reference/cli.md": "names messages of a site; its commands and options are checked against the command line",
}
"""Pages whose blocks no test runs as printed, each with the reason."""


class Block(NamedTuple):
    page: str
    language: str
    code: str


def is_run(block: Block) -> bool:
    """Whether a test runs the block as printed."""
    _, begins = PARTLY.get(block.page, ("", ()))
    return block.page in {*SERVED, *ELSEWHERE} or block.code.startswith(begins)


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
