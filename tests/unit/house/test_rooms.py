"""The structure of the tree: what no later change may make worse."""

from __future__ import annotations

import tomllib
from itertools import product
from typing import Final

import grimp
import pytest

from tests.support.house.tree import NAMED_OTHERWISE, PACKAGES, ROOT, circles, modules, named_otherwise, sizes

pytestmark = pytest.mark.heavy

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


def test_the_layers_on_the_page_are_those_of_the_code(graph: grimp.ImportGraph) -> None:
    page = (ROOT / "docs/explain/architecture.md").read_text()
    lines = page.partition("The layers of the larger folders")[2].split("```")[1].strip().splitlines()
    upward = []
    for line in lines:
        top, layers = line.split(maxsplit=1)
        parts = [
            (level, f"duemq.{top}.{name.strip().replace('/', '.')}")
            for level, names in enumerate(layers.split(">"))
            for name in names.split("|")
        ]
        assert {part for _, part in parts} <= graph.modules
        upward += [
            (part, other)
            for (level, part), (above, other) in product(parts, parts)
            if part != other
            and above <= level
            and graph.direct_import_exists(importer=part, imported=other, as_packages=True)
        ]
    assert len(lines) > 5 and upward == []


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
