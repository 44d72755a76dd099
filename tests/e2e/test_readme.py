"""The examples of the README, copied out of it and run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.server import BIN, Server, environment

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(heading: str, language: str) -> str:
    """The first block of code in `language` behind the paragraph that begins with `heading`."""
    match = re.search(rf"^\*\*{heading}\*\*.*?^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert match, heading
    return match[1]


def run(command: list[str], server: Server) -> str:
    settings = environment() | {"DUEMQ_URL": server.url, "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_do_what_the_readme_says(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        server.start()
        answers = run(["bash", "-ec", block("curl", "sh").replace("\n", "; echo\n")], server).split("\n")
        statuses = ('"scheduled"', '"payload":"pay order 42"', '"scheduled"', '"cancelled"', '"naive_time"')
        assert all(status in answer for status, answer in zip(statuses, answers, strict=False)), answers

        shown = run(["bash", "-ec", block("Command line", "sh")], server)
        for text in ("(in 1h)", "pay order 42", "pay order 44", "exit code 3: too late"):
            assert text in shown, shown

        assert "cancelled at 20" in run([sys.executable, "-c", block("Python", "python")], server)
