"""The structure of the tree: what no later change may make worse."""

from __future__ import annotations

import tomllib
from typing import Final

import grimp
import pytest

from tests.support.house.tree import NAMED_OTHERWISE, PACKAGES, ROOT, circles, modules, named_otherwise, sizes

MAX_FILES: Final = 12


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("duemq", cache_dir=None)


def test_no_files_or_folders_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    assert circles(graph) == {}


@pytest.mark.parametrize(
    "arrow",
    [
        ("duemq.storage.keyspace", "duemq.storage.shard.store"),
        ("duemq.model.errors", "duemq.model.messages.message"),
        ("duemq.web.connection.exchange", "duemq.web.connection.protocol"),
    ],
)
def test_a_circle_is_found(graph: grimp.ImportGraph, arrow: tuple[str, str]) -> None:
    importer, imported = arrow
    graph.add_import(importer=importer, imported=imported)
    found = circles(graph)
    graph.remove_import(importer=importer, imported=imported)
    assert found != {}


def test_no_folder_has_more_files_than_one_can_keep_in_mind() -> None:
    assert {folder: size for folder, size in sizes().items() if size > MAX_FILES} == {}


def test_files_are_named_for_what_is_in_them() -> None:
    """The list has those that never were. Take out what is named well by now; add none."""
    others = {str(path.relative_to(ROOT)) for path in modules() if named_otherwise(path)}
    assert others == set(NAMED_OTHERWISE.read_text().split())


def test_ruff_bans_the_import_of_every_folder_by_its_bare_name() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == {package.name for package in PACKAGES}
    assert all(ban["msg"] == f"import duemq.{name}" for name, ban in banned.items())
