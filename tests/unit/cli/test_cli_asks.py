"""What cannot be undone is asked first, with what it is about; `--yes` is for programs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.unit.cli.test_cli import Shell, problem, shell
from tests.unit.cli.test_cli_destinations import SHOP

__all__ = ["shell"]  # the fixture

KEY: dict[str, Any] = {
    "id": "ab3kd7m2q9xz", "name": "ops", "scopes": ["admin"], "topics": [], "rate": 0, "state": "active",
    "created_at": "…", "expires_at": None, "revoked_at": None,
}  # fmt: skip
JOB: dict[str, Any] = {
    "id": "j1", "kind": "move", "state": "running", "active": True, "total": 5, "done": 2, "skipped": 0, "failed": 0,
    "skipped_by_reason": {}, "failed_by_reason": {}, "reason": "",
}  # fmt: skip


CASES = [
    (
        ("keys", "revoke", "ops"),
        [{"keys": [KEY]}],
        "Revoke ops (ab3kd7m2q9xz, admin, active)?",
        KEY | {"state": "revoked"},
    ),
    (("jobs", "cancel", "j1"), [JOB], "End this job?", JOB | {"state": "cancelled"}),
    (("destination", "rm", "shop"), [SHOP], "Remove shop and its credentials?", {}),
]


@pytest.mark.parametrize(("words", "looked_up", "question", "done"), CASES)
def test_what_cannot_be_undone_is_done_after_a_yes_alone(
    words: tuple[str, ...], looked_up: list[Any], question: str, done: dict[str, Any], shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert (shell(*words).code, len(shell.requests)) == (2, 0), "a program is told of --yes"
    monkeypatch.setattr("duemq.cli.confirmation._has_terminal", lambda: True)
    for answer in ("n", "y"):
        shell.answers = [httpx.Response(200, json=document) for document in looked_up]
        shell.answers += [httpx.Response(200, json=done)] if answer == "y" else []
        shell(*words, stdin=f"{answer}\n")
        assert question in shell.err and shell.code == (0 if answer == "y" else 1)
    shell.answers = [httpx.Response(200, json=done)]
    assert shell(*words, "--yes").code == 0


def test_the_last_admin_is_told_how_the_next_key_is_made(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.cli.confirmation._has_terminal", lambda: True)
    shell.answers = [httpx.Response(200, json={"keys": [KEY]})]
    assert "the last admin's key" in shell("keys", "revoke", "ops", stdin="n\n").err


def test_the_first_key_is_made_after_a_yes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.cli.confirmation._has_terminal", lambda: True)
    shell.answers = [problem(409, "unconfirmed"), httpx.Response(201, json=KEY | {"key": "text"})]
    shell("keys", "create", "ops", "--role", "admin", stdin="y\n")
    assert shell.code == 0 and shell.out.endswith("text\n") and "It is unconfirmed. Create the key?" in shell.err
    sure = [b"confirm" not in request.content for request in shell.requests]
    assert sure == [False, True]
