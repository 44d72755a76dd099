"""A profile of a real server that asks for keys: used by commands, by the completion of a shell, and by `open`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import DUEMQ, Server, environment, run, wait_for

pytestmark = pytest.mark.slow  # starts a process for each command

KEY = "the-key-of-the-test"


def test_a_server_is_known_by_its_profile(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server("--set", f"http.api_keys={KEY}").start()
    (tmp_path / "key").write_text(KEY + "\n")
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}

    def duemq(*words: object, **variables: str) -> str:
        done = run(*words, variables=home | variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ("--url", server.url, "--api-key-file", tmp_path / "key")
    duemq("profile", "add", "near", *options)
    assert run("ls", url=server.url, variables=home).returncode == 7, "it asks for a key"
    send = ("send", "profile.mails", "x", "--after", "1h", "--quiet")
    ids = [duemq(*send, "--profile", "near").strip(), duemq("--profile", "near", *send).strip()]
    ids.append(duemq("send", "profile.orders", "x", "--after", "1h", "--quiet", DUEMQ_PROFILE="near").strip())
    duemq("profile", "use", "near")
    assert '"status":"scheduled"' in duemq("get", ids[0], "--json")
    assert duemq("open", "--print") == f"{server.url}/console/\n"
    assert server.call("GET", "/console/").status_code != 404

    def completed(line: str) -> list[str]:
        words = {"_DUEMQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([DUEMQ], env=environment() | home | words, capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        return sorted(done.stdout.split())

    for line, words in (
        ("duemq tail profile.", ["profile.mails", "profile.orders"]),
        ("duemq cancel ", sorted(ids)),
        (f"duemq get {ids[0]}", ids[:1]),
    ):  # a busy machine may need more than the second that a shell waits
        wait_for(lambda line=line, words=words: completed(line) == words, line)  # type: ignore[misc]
    (tmp_path / "key").unlink()
    assert completed("duemq cancel ") == []
    gone = run("ls", variables=home)
    assert (gone.returncode, gone.stderr) == (
        1, f"duemq: the API key in {tmp_path}/key cannot be read: No such file or directory\n",
    )  # fmt: skip
    server.stop()
    away = run("ls", "--api-key", KEY, variables=home)
    assert away.returncode == 8 and away.stderr.count("\n") == 1 and "profile near" in away.stderr
