from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest

CODE = "import logging, duemq.client.relay.command as r; r.log_in_utc('info'); logging.getLogger('a').info('hello')"


@pytest.mark.heavy
def test_a_relay_logs_times_in_utc_that_say_so_wherever_it_runs() -> None:
    environment = os.environ | {"TZ": "Asia/Kolkata", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    line = re.fullmatch(r"\[(\S+Z): INFO\] a: hello\n", run.stderr)
    assert line is not None, run.stderr
    assert abs((datetime.fromisoformat(line[1]) - datetime.now(UTC)).total_seconds()) < 600
