"""The structure of the tree: what no later change may make worse."""

from __future__ import annotations

import tomllib

from tests.support.house.tree import PACKAGES, ROOT, circular_pairs

CIRCULAR = {
    ("bench/clients", "bench/harness"),
    ("bench/clients", "bench/system"),
    ("bench/harness", "bench/system"),
    ("cli/operate", "cli/run"),
    ("delay/imports", "delay/shard"),
    ("delay/indexing", "delay/shard"),
    ("delay/shard", "delay/tiering"),
    ("pipeline/cli", "pipeline/spark"),
    ("proxy/api", "proxy/console"),
    ("proxy/api", "proxy/destinations"),
    ("storage/backup", "storage/data_folder"),
    ("storage/delay_files", "storage/imports"),
    ("storage/delay_files", "storage/jobs"),
    ("storage/delay_files", "storage/shard"),
    ("storage/imports", "storage/jobs"),
    ("storage/imports", "storage/shard"),
    ("storage/message_index", "storage/shard"),
    ("web/connections", "web/protocol"),
    ("web/exchange", "web/protocol"),
}
"""Pairs that import each other. Remove a pair here once it does not; never add one."""


def test_no_two_folders_import_each_other_but_those_that_always_did() -> None:
    assert circular_pairs() == CIRCULAR


def test_ruff_bans_the_import_of_every_folder_by_its_bare_name() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == {package.name for package in PACKAGES}
    assert all(ban["msg"] == f"import duemq.{name}" for name, ban in banned.items())
