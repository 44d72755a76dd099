"""Commands of the pages are commands of `duemq`, with options that they have: also in blocks that no test runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from duemq.cli.app import command_line
from tests.support.docs.blocks import blocks

_COMMAND = re.compile(r"(?:^|[|;&(]|/bin/|\bsudo -u duemq )\s*duemq (.+)$")
OWN_OPTIONS = {"health"}  # reads its options without the library
COMMAND_LINE: Any = typer.main.get_command(command_line())


def commands() -> Iterator[tuple[str, list[str]]]:
    """The page and the words after `duemq` of each command."""
    for block in blocks():
        if block.language in ("sh", "bash"):
            for line in block.code.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\|\||\||;|\$\(", line):
                    if (found := _COMMAND.search(part.strip())) is not None and "<" not in found[1]:
                        try:
                            words = shlex.split(found[1].partition(")")[0].rstrip('"'), comments=True)
                        except ValueError:  # a quote that ends on another line
                            words = found[1].split()
                        yield block.page, words


def wrong(words: list[str]) -> str:
    """The word or option that the command line does not have, or an empty text."""
    command: Any = COMMAND_LINE
    takes_value = {"--help": False, "--version": False}
    left = iter(words)
    for word in left:
        for parameter in command.params:
            takes_value |= dict.fromkeys(
                (*parameter.opts, *parameter.secondary_opts), not getattr(parameter, "is_flag", False)
            )
        option, equals, _ = word.partition("=")
        if option.startswith("--") and command.name not in OWN_OPTIONS:
            if option not in takes_value:
                return f"{option} of {command.name}"
            if takes_value[option] and not equals:
                next(left, None)
        elif inner := getattr(command, "commands", None):
            if word not in inner:
                return "" if word == "…" else f"{word} of {command.name}"
            command = inner[word]
    return ""


def test_every_command_of_the_pages_is_there_with_its_options() -> None:
    found = list(commands())
    assert len(found) > 100
    assert [f"{page}: {' '.join(words)}: {fault}" for page, words in found if (fault := wrong(words))] == []


@pytest.mark.parametrize("words", [["sned", "orders"], ["send", "orders", "--aftr", "1s"], ["dlq", "list"]])
def test_a_wrong_command_is_found(words: list[str]) -> None:
    assert wrong(words)
