"""A program that imports every module of the installed `duemq`, and prints its folder."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import duemq

_NOT_HERE = tuple(sys.argv[1:])
"""What a module may lack: the names of packages that are not installed."""


def main() -> None:
    print(duemq.__path__[0])
    lacking = []
    for module in pkgutil.walk_packages(duemq.__path__, "duemq.", onerror=_raised):
        if module.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _NOT_HERE:
                raise
            lacking.append(module.name)
    print(*lacking)


def _raised(name: str) -> None:
    error = sys.exc_info()[1]
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").partition(".")[0] not in _NOT_HERE:
        raise error if error is not None else ImportError(name)


if __name__ == "__main__":
    main()
