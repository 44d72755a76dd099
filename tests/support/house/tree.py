"""The product's folders and modules, read from the tree: no test keeps a list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = sorted(path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
"""The top-level folders with code."""


def modules() -> list[Path]:
    """Every Python file of the product."""
    return [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def circular_pairs() -> set[tuple[str, str]]:
    """Pairs of neighbours in one top-level folder (sub-folders, or files) that import each other."""
    graph = grimp.build_graph("duemq")
    arrows = set()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            from_, to = importer.split(".")[1:], imported.split(".")[1:]
            if len(from_) > 1 and len(to) > 1 and from_[0] == to[0] and from_[1] != to[1]:
                arrows.add(("/".join(from_[:2]), "/".join(to[:2])))
    return {(a, b) for a, b in arrows if a < b and (b, a) in arrows}
