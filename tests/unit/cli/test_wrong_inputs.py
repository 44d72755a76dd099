"""Ten wrong inputs of each command: one line each, which names the option, and exit code 2; a document with `--json`.

`DRAW=1 pytest tests/unit/cli/test_wrong_inputs.py` writes `wrong_inputs.txt` again: read what changed.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from typer.main import get_command

from duemq.cli.app import _COMMANDS, command_line

pytestmark = pytest.mark.heavy

GOLDEN = Path(__file__).parent / "wrong_inputs.txt"
PER_COMMAND = 10
WITH_JSON = 3  # of them: all take the same way
ROOT = get_command(command_line())
OWN_PARSER = ("health",)
"""They start before typer is imported, and answer with codes of probes."""

DURATIONS = ("--after", "--expires-after", "--overlap", "--shift", "--timeout")
TIMES = ("--at", "--expires", "--due-from", "--due-to", "--dead-from", "--dead-to")
PAIRS = ("--header", "--header-base64", "--retry", "--option")
BY_HAND: dict[str, list[tuple[str, str]]] = {
    "send": [
        ("orders hello --after 1h --at 2031-01-01T08:00:00Z", "--at"),
        ("orders hello --at 2031-01-01T08:00:00", "--at"), ("orders hello --null", "--null"),
        ("orders hello --after 1h --zone Europe/Berlin", "--zone"),
        ("orders hello --header-base64 a=?", "--header-base64"), ("orders hello --after -5s", "--after"),
    ],
    "reschedule": [("ID", "--after"), ("ID --after 1h --level 3", "--after")],
    "find": [("--topic orders", "--key")],
    "cancel": [("", "ID"), ("ID --topic orders", "ID"), ("--topic orders", "--yes")],
    "job begin": [
        ("cancel", "--topic"), ("reschedule --topic orders", "--shift"),
        ("cancel --topic orders --shift 2h", "--shift"),
    ],
    "dlq redrive": [("--topic orders", "--dead-from"), ("", "ID"), ("0:1 --group a --source b", "--source")],
    "dlq purge": [("--topic orders", "--dead-from"), ("", "ID")],
    "destination edit": [("billing", "URL")],
    "key add": [("shop", "--scope")],
    "shard recover": [("3", "--accept-loss")],
    "import": [("/nosuch.parquet", "PATH")],
    "ls": [("--url a:1 --profile b", "--profile"), ("--api-key a --api-key-file b", "--api-key-file")],
    "open": [("--url ftp://a", "--url")],
    "profile add": [
        ("prod", "--url"), ("a/b --url a:1", "NAME"), ("prod --url a:1 --api-key b", "--api-key"),
        ("prod --url a:1 --ca-file /nosuch", "--ca-file"),
    ],
    "profile use": [("", "NAME"), ("prod --none", "NAME")],
    "config show": [("--set a", "--set")],
}  # fmt: skip
NEEDED = {"find": ("--key", "x"), "key add": ("--scope", "read")}
"""Without it they say that it is missing, and not what else is wrong."""


class WrongInput(NamedTuple):
    """Words, and what the line about them has to name."""

    words: tuple[str, ...]
    named: str


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if name not in OWN_PARSER and (*path, name) != ("message",):
            if hasattr(command, "commands"):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command


def wrong_inputs(path: tuple[str, ...], command: Any) -> list[WrongInput]:
    """Those of its own first, then a wrong value of each option in turn, then what is wrong anywhere."""
    good = tuple(chain.from_iterable(_good(param) for param in command.params if param.required))
    good += NEEDED.get(" ".join(path), ())
    by_hand = [WrongInput((*path, *words.split()), named) for words, named in BY_HAND.get(" ".join(path), [])]
    own = path[0] in _COMMANDS
    of_options = [list(_values(param, own)) for param in command.params if param.param_type_name == "option"]
    in_turn = [case for round_ in zip_longest(*of_options) for case in round_ if case]
    values = [WrongInput((*path, *good, *words), named) for words, named in in_turn]
    values = [*by_hand, *values][: PER_COMMAND - 5]
    anywhere = [WrongInput((*path, *words), named) for words, named in _anywhere(command, good)]
    return list(islice(dict.fromkeys([*values, *anywhere]), PER_COMMAND))


def _good(param: Any) -> tuple[str, ...]:
    choices = param.type_descriptor.choices
    value = str(choices[0]) if choices else "3" if param.bare_type() in ("int", "float") else "x"
    return (value,) if param.param_type_name == "argument" else (max(param.opts, key=len), value)


def _values(param: Any, own: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    option = max(param.opts, key=len)
    if param.is_flag:
        return
    info = param.type_descriptor.parameter_info
    if param.type_descriptor.choices:
        yield (option, "nosuch"), option
    elif param.bare_type() in ("int", "float"):
        yield (option, "many"), option
        if info.min is not None:
            yield (option, str(info.min - 1)), option
        if info.max is not None:
            yield (option, str(info.max + 1)), option
    elif own and option in DURATIONS:
        yield from (((option, text), option) for text in ("1hour", "5", "soon"))
    elif own and option in TIMES:
        yield from (((option, text), option) for text in ("tomorrow", "1924992000", "2031-01-01 08:00"))
    elif own and option in PAIRS:
        yield (option, "x"), option
    elif info.exists:
        yield (option, "/nosuch"), option


def _anywhere(command: Any, good: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    options = [param for param in command.params if param.param_type_name == "option"]
    yield (*good, "--nosuch"), "--nosuch"
    if missing := next((param for param in command.params if param.required), None):
        yield (), _name(missing)
    for param in options[:1]:
        option = max(param.opts, key=len)
        yield (*good, option[:-1] + "xq"), option[:-1] + "xq"
    yield from (((*good, max(param.opts, key=len)), max(param.opts, key=len)) for param in options if not param.is_flag)
    yield from (((*good, f"{max(p.opts, key=len)}=yes"), max(p.opts, key=len)) for p in options if p.is_flag)
    if not any(param.nargs == -1 for param in command.params):
        many = [f"more{number}" for number in range(len(command.params) + 1)]
        yield (*good, *many), many[-1]
        yield (*good, *many, "again"), "again"
    yield from (((*good, text), text) for text in ("-Z", "--nosuch-either", "--nosuch-3", "--nosuch-4", "--nosuch-5"))
    yield from (((*good, text), text) for text in ("--nosuch-6", "--nosuch-7", "--nosuch-8"))


def _name(param: Any) -> str:
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def run(*words: str) -> tuple[int | str | None, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        ROOT.main(list(words), prog_name="duemq")
    return ended.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("DUEMQ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DUEMQ_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_each_wrong_input_is_told_in_one_line_that_names_the_option() -> None:
    shown = []
    for path, command in commands():
        cases = wrong_inputs(path, command)
        assert len(cases) == PER_COMMAND, path
        for number, (words, named) in enumerate(cases):
            code, out, err = run(*words)
            line = " ".join(words)
            assert (code, out, err.count("\n")) == (2, "", 1), (line, code, out, err)
            assert err.startswith("duemq: ") and named in err.partition(" (see ")[0], (line, named, err)
            shown.append(f"$ duemq {line}\n{err}")
            if number >= WITH_JSON:
                continue
            code, out, again = run(*path, "--json", *words[len(path) :])
            document = orjson.loads(out)["error"]
            assert (code, document["code"]) == (2, "usage"), (line, out)
            assert f"duemq: {document['detail']}" in again
    text = "\n".join(shown)
    if os.environ.get("DRAW"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "read what changed, and draw it again: see the first lines of this file"


def test_old_spellings_mean_what_they_meant() -> None:
    for old, now in (("jobs show", "job get"), ("keys create", "key add"), ("destination show", "destination get")):
        code, out, err = run(*old.split(), "--help")
        assert (code, err) == (0, "") and out.partition("\n")[2] == run(*now.split(), "--help")[1].partition("\n")[2]
    assert "show" not in run("dlq", "--help")[1] and "keys" not in run("--help")[1].split()


def test_help_can_be_copied_from_a_pipe() -> None:
    """No boxes, no names of Python's types, and each example on a line of its own."""
    for path, command in commands():
        lines = run(*path, "--help")[1].splitlines()
        assert not set("╭│╰{<") & set(lines[0]) and not any(
            word in line for word in ("<str", "list[", "│") for line in lines
        )
        for example in (command.epilog or "").replace("\b", "").splitlines():
            assert f"  {example}".rstrip() in lines, path
