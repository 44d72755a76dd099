"""The lines that `duemq kafka-acls` prints, as kafka-acls.sh gets them from a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.server import run


def printed_rights(folder: Path, *options: str) -> Sequence[str]:
    """Run the script with a kafka-acls.sh that writes down its options. Returns one line for each call."""
    script = run("kafka-acls", "--kafka", "broker:9092", *options)
    assert script.returncode == 0, script.stderr
    (folder / "kafka-acls.sh").write_text('#!/bin/sh\necho "$0 $*"\n')
    (folder / "kafka-acls.sh").chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "ADMIN": "admin.properties"}
    done = subprocess.run(["sh"], input=script.stdout, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout.splitlines()
