"""The product's folders and modules, read from the tree: no test keeps a list of them."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = sorted(path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
"""The top-level folders with code."""
NAMED_OTHERWISE: Final = Path(__file__).with_name("named_otherwise.txt")
"""A list of the files whose names share no word with their contents (`named_otherwise`)."""
NAMED_TWICE: Final = Path(__file__).with_name("named_twice.txt")
"""A list of the names that several public classes have."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def modules() -> list[Path]:
    """Every Python file of the product."""
    return [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def circles(graph: grimp.ImportGraph) -> dict[str, set[tuple[str, str]]]:
    """Imports that close a circle among the parts (files and folders) of a package, by package; `files`: among files
    of the whole tree, where a package's own imports count, too."""
    found = {
        package: graph.nominate_cycle_breakers(package) for package in graph.modules if graph.find_children(package)
    }
    try:
        arrows = {each: graph.find_modules_directly_imported_by(each) - {each} for each in graph.modules}
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        found["files"] = set(pairwise(circle))
    return {package: imports for package, imports in found.items() if imports}


def sizes() -> dict[str, int]:
    """The number of modules in each folder, `__init__.py` aside."""
    files = [path for path in modules() if path.name != "__init__.py"]
    folders = [str(path.parent.relative_to(ROOT)) for path in files]
    return {folder: folders.count(folder) for folder in sorted(set(folders))}


def named_otherwise(path: Path) -> bool:
    """Whether a file has public classes, and no public class or function in it has a word of the file's name."""
    public = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]
    if path.name == "__init__.py" or not any(isinstance(node, ast.ClassDef) for node in public):
        return False
    return _words(path.stem).isdisjoint(word for node in public for word in _words(node.name))


def _words(name: str) -> set[str]:
    """The words of a name, in lower case and the singular."""
    return {word.lower().removesuffix("s") for word in _WORD.findall(name)}
