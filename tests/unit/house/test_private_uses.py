"""Tests ask through public names: a test of private attributes breaks with each renaming, and proves little."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.support.house.tree import ROOT

pytestmark = pytest.mark.heavy

MOST: Final = 88
"""May only fall. Make the attribute public if it is part of what the object is for; what belongs to aiokafka or PySpark
goes through tests/support/servers/aiokafka_parts.py and tests/support/spark/java.py."""

_NAMED_TUPLE: Final = {"_asdict", "_fields", "_make", "_replace"}


def private_uses(source: str) -> list[str]:
    """Uses of attributes with an underscore, but for those of the object itself and of its base class."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _NAMED_TUPLE
        and ast.unparse(node.value) not in ("self", "cls", "super()", "os")
    ]


def test_tests_use_no_more_private_attributes_than_before() -> None:
    uses = [
        f"{path.relative_to(ROOT)}: {use}"
        for path in ROOT.glob("tests/**/*.py")
        for use in private_uses(path.read_text())
    ]
    assert len(uses) <= MOST, sorted(uses)


def test_a_use_is_found() -> None:
    source = "self._a\nsuper()._b()\nos._exit(1)\npoint._replace(x=1)\n"
    assert sorted(private_uses(f"{source}bus._wire.client\nself.bus._tails")) == ["bus._wire", "self.bus._tails"]
