"""The examples that need no Kafka run as they stand, and the page names all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server, environment
from tests.support.patience import PROCESS_S

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.servers
def test_orders_that_are_not_paid_are_cancelled_and_a_poison_message_holds_up_no_other(shared_server: Server) -> None:
    variables = environment() | {"DUEMQ_URL": shared_server.url}
    command = [sys.executable, str(EXAMPLES / "order_timeouts.py")]
    example = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, env=variables)
    assert (example.returncode, example.stderr) == (0, "")
    assert "order-1: paid in time" in example.stdout and "order-2: too late" in example.stdout
    assert "attempt 3: " in example.stdout and "3 orders cancelled, 1 record set aside" in example.stdout


def test_the_page_of_the_examples_names_each_of_them() -> None:
    page = (EXAMPLES / "README.md").read_text()
    missing = [
        path.name
        for path in EXAMPLES.iterdir()
        if path.suffix in (".py", ".java", ".erl") and f"]({path.name})" not in page
    ]
    assert missing == []
