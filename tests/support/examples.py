"""Programs of the folder `examples` as modules, for tests of what is in them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    """The program `name.py`; it may import its neighbours, as when it is run."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
