"""The error for a missing package that one of the extras installs."""

from __future__ import annotations


def extra_missing(error: ModuleNotFoundError, by: str, extra: str) -> ModuleNotFoundError:
    """The error to raise instead: it names the extra of pyproject.toml that `by` needs."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "duemq"):  # a defect
        return error
    sentence = f"{by} needs {package}, which is not installed: pip install 'duemq[{extra}]'"
    return ModuleNotFoundError(sentence, name=package)
