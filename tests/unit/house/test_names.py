"""The names of classes: one class for each name, and nouns."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.house.tree import NAMED_TWICE, ROOT, modules

pytestmark = pytest.mark.heavy

_PARTICIPLE: Final = re.compile(
    r"(?:Not)?(?:[A-Z][a-z]+(?:ed|ing)|Lost|Written|Taken(?:In)?|Held|Sent|Kept|Found|Told)"
)
_IS_ERROR: Final = re.compile(r"Error|Exception|Reject|Fatal|Refused|NotAllowed|RetryLater|Failed")
_NOUNS: Final = frozenset((
    "Finding", "Mapping", "Tracing", "Ending", "Numbering",  # nouns, though they end like participles
    "Done", "Running", "Cancelled",  # states and outcomes, which users import
    "Closed", "Refused", "Pending", "Ended", "Drained",  # in the document of the API
))  # fmt: skip
_LEFT: Final = {"Agreed", "Compared", "Gathered", "Judged"}
"""Participles that have not been replaced yet. Take out what is gone; add none."""


def classes() -> Iterator[tuple[str, str, bool]]:
    """Each public class: its name, its file, and whether it is an error. Without the generated blocking client."""
    for path in modules():
        if "blocking" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                is_error = any(_IS_ERROR.search(ast.unparse(base)) for base in node.bases)
                yield node.name, str(path.relative_to(ROOT)), is_error


def test_a_class_has_a_name_to_itself() -> None:
    """The list has ideas that a user meets on both sides: in the SDK and in the server, or in the document of the API
    and in the code. Take out what has one class by now; add none."""
    files = defaultdict(set)
    for name, file, _ in classes():
        files[name].add(file)
    twice = {name: sorted(where) for name, where in files.items() if len(where) > 1}
    allowed = set(NAMED_TWICE.read_text().split())
    assert {name: where for name, where in twice.items() if name not in allowed} == {}


def test_no_class_has_a_participle_for_a_name() -> None:
    found = {name for name, _, is_error in classes() if _PARTICIPLE.fullmatch(name) and not is_error}
    assert found - _NOUNS <= _LEFT


@pytest.mark.parametrize("name", ["Gathered", "NotTakenIn", "Lost", "Parking"])
def test_a_participle_is_found(name: str) -> None:
    assert _PARTICIPLE.fullmatch(name)
