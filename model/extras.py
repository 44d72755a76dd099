"""The error for a missing package that one of duemq's distributions or extras installs."""

from __future__ import annotations


def extra_missing(error: ModuleNotFoundError, by: str, requirement: str) -> ModuleNotFoundError:
    """The error to raise instead of `error`: its text has the requirement, such as `duemq[consumer]`, that `by`
    needs."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "duemq"):  # not a missing package but a defect
        return error
    sentence = f"{by} needs {package}, which is not installed: pip install '{requirement}'"
    return ModuleNotFoundError(sentence, name=package)
