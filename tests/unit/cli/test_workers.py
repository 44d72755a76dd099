"""The parent of several processes: what it takes for a worker, and what its end means."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The parent inherits orphans, as process 1 of a container does. A worker waits to be told.
_BEGIN = """
import ctypes, os, signal, subprocess, sys, time
from duemq.cli.wiring.workers import run_workers
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER

def orphan(code):
    # Its parent ends first, then it; comes back once its new parent has waited for it.
    read, write = os.pipe()
    script = f"exec 3<&0; sh -c 'read line; exit {code}' <&3 >/dev/null & echo $!"
    pid = subprocess.check_output(["sh", "-c", script], stdin=read).decode().strip()
    os.close(read)
    os.close(write)
    while os.path.exists("/proc/" + pid): time.sleep(0.01)

def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would raise where the first is dealt with
    sys.exit(0)

def wait():
    signal.signal(signal.SIGTERM, end)
    while True: time.sleep(0.02)  # `signal.pause` would miss what comes a moment before
"""


def parent(code: str, *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, timeout=300, check=False
    )


def test_an_orphan_is_no_worker() -> None:
    done = parent("""
def run(number):
    if number == 0:
        orphan(3)
        orphan(0)
        os.kill(os.getppid(), signal.SIGTERM)
    wait()
run_workers(2, run)
print("all ended")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all ended\n", "")


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "return", "1 / 0"])
def test_where_one_ends_by_itself_the_others_are_stopped(end: str) -> None:
    done = parent(f"""
def run(number):
    if number == 1:
        {end}
    wait()
run_workers(3, run)
""")
    assert done.returncode == 1
    assert done.stderr.count("ended unexpectedly, stopping the others") == 1


def test_a_worker_that_has_no_handlers_yet_ends_when_told() -> None:
    done = parent("""
def run(number):
    os.kill(os.getppid(), signal.SIGTERM)
    while True: time.sleep(0.02)  # `signal.pause` would miss what comes a moment before
run_workers(2, run)
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_before_all_of_them_are_there_reaches_all() -> None:
    done = parent("""
from duemq.cli.wiring import workers
fork = os.fork
def told_at_once():
    child = fork()
    if child: os.kill(os.getpid(), signal.SIGTERM)
    return child
os.fork = told_at_once
run_workers(3, lambda number: wait())
print("all ended")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all ended\n", "")


@pytest.mark.parametrize(
    ("end", "code"), [("return", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_process_1_waits_for_orphans_and_ends_as_its_server_does(end: str, code: int) -> None:
    """Played by a process that takes itself for number 1: it inherits orphans just as well."""
    done = parent(f"""
os.getpid, getpid = (lambda: 1), os.getpid
def run(number):
    assert number is None and os.getppid() != getpid()
    os.getpid = getpid
    orphan(3)
    {end}
run_workers(1, run)
""")
    assert (done.returncode, done.stderr) == (code, "")


def test_other_signals_reach_the_workers_too() -> None:
    done = parent("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
read, write = os.pipe()
def run(number):
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getppid(), signal.SIGTERM))
    if number == 0: os.write(write, b"listening")
    else: os.read(read, 9), os.kill(os.getppid(), signal.SIGHUP)
    wait()
run_workers(2, run)
print("all ended")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all ended\n", "")


def test_alone_it_is_the_server_itself() -> None:
    done = parent("run_workers(1, lambda number: print(number, os.getpid()))\nprint(os.getpid())")
    (said, pid), own = done.stdout.splitlines()[0].split(), done.stdout.splitlines()[1]
    assert (said, pid) == ("None", own)
