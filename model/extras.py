"""The sentence about a missing package that a distribution of ours brings."""

from __future__ import annotations


def extra_missing(error: ModuleNotFoundError, by: str, requirement: str) -> ModuleNotFoundError:
    """The error to raise instead: it names the requirement, such as `duemq[consumer]`, that `by` needs."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "duemq"):  # a defect
        return error
    sentence = f"{by} needs {package}, which is not installed: pip install '{requirement}'"
    return ModuleNotFoundError(sentence, name=package)
