"""Formatting of the command line: plain help, old spellings, and usage errors in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_json
from duemq.model.printable import escaped

_OLD_SPELLINGS: Final = {"keys": "key", "jobs": "job", "show": "get", "create": "add"}
"""Old names. They still work, but the help does not list them."""
_OPTIONS: Final = {
    "deliver_at": "--at",
    "deliver_after": "--after",
    "delay_level": "--level",
    "expires_at": "--expires",
}
"""Fields of the API whose options have other names."""
_ALIKE: Final = "expires_after|due_from|due_to|dead_from|dead_to|topic_prefix|name_prefix|idempotency_key"
_FIELD: Final = re.compile(rf"\b(?:{'|'.join(_OPTIONS)}|{_ALIKE})\b")
_EXTRA: Final = re.compile(r"^got unexpected extra arguments?(?:\(s\))? \(")
_WHOLE: Final = 300  # characters: longer than any sentence
_PLAIN_TYPES: Final = {"int": "N", "float": "N", "Path": "PATH"}


def now_spelled(name: str) -> str:
    """The current name of a command, also for an old name."""
    return _OLD_SPELLINGS.get(name, name)


def in_options(text: str) -> str:
    """A sentence about fields of the API, with the names of their options instead of those of the fields."""
    return _FIELD.sub(lambda field: _OPTIONS.get(field[0], f"--{field[0].replace('_', '-')}"), text)


class CommandGroup(TyperGroup):
    """Finds commands by name, old names included, and lists them by panel. The outermost group reports usage errors."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = self.commands.get(cmd_name) or self.commands.get(now_spelled(cmd_name))
        if command is not None:
            _make_plain(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                rows = panels.setdefault(panel if isinstance(panel, str) else "Commands", [])
                rows.append((name, command.get_short_help_str(_WHOLE)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Like Typer's `main`, but every error is reported as one line, and with `--json` also as a document."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:
            _end(error, "--json" in (sys.argv[1:] if args is None else args))
        except typer.Abort:
            typer.echo("duemq: stopped; nothing was changed", err=True)
            sys.exit(Exit.ERROR)
        sys.exit(code if isinstance(code, int) else Exit.DONE)


def _end(error: typer.TyperException, as_json: bool) -> NoReturn:
    """End the process for a usage error."""
    if type(error).__name__ != "NoArgsIsHelpError":
        option, text = _sentence(error)
        context = getattr(error, "ctx", None)
        see = f" (see {context.command_path} --help)" if context is not None else ""
        typer.secho(f"duemq: {text}{see}", err=True, fg=typer.colors.RED)
        if as_json:
            echo_json({"error": {"kind": "UsageError", "detail": text, "code": "usage", "option": option}})
    else:
        typer.echo(error.format_message(), err=True)
    sys.exit(error.exit_code)


def _sentence(error: Any) -> tuple[str | None, str]:
    """The option or argument at fault, if there is one, and a sentence that names it."""
    text = escaped(" ".join(error.message.split())).rstrip(".")
    param = getattr(error, "param", None)
    option = getattr(error, "param_hint", None) or getattr(error, "option_name", None)
    if option is None and param is not None:
        option = max(param.opts, key=len) if param.param_type_name == "option" else _argument_name(param)
    if option is None:
        return None, _EXTRA.sub("too many arguments: ", text[:1].lower() + text[1:].removesuffix(")"))
    match type(error).__name__:
        case "MissingParameter":
            return option, f"{option} is missing"
        case "NoSuchOption":
            near = get_close_matches(option, error.possibilities or (), n=1, cutoff=0)
            return option, f"there is no option {escaped(option)}" + (f"; did you mean {near[0]}?" if near else "")
        case "BadOptionUsage":
            return option, f"{option} needs a value" if "requires" in text else f"{option} takes no value"
    if param is not None and (cause := error.__cause__) is not None and hasattr(cause, "errors"):
        return option, f"{option} {_rule_of(param, cause.errors()[0])}"
    return option, text if option in text.replace(":", " ").split() else f"{option}: {text}"


def _rule_of(param: Any, wrong: dict[str, Any]) -> str:
    """The values that a parameter accepts, and the given value, taken from a pydantic error."""
    given = escaped(str(wrong["input"]))
    if choices := param.type_descriptor.choices:
        return f"must be one of {', '.join(map(str, choices))}, not {given!r}"
    least, most = param.type_descriptor.parameter_info.min, param.type_descriptor.parameter_info.max
    kind = "a whole number" if wrong["type"].startswith("int") or isinstance(least, int) else "a number"
    bounds = {(False, False): "", (True, False): f", {least} or more", (False, True): f", {most} at most"}
    limits = bounds.get((least is not None, most is not None), f" from {least} to {most}")
    return f"must be {kind}{limits}, not {given!r}"


def _make_plain(command: Any) -> None:
    """Make help that can also be read and copied in a pipe: plain value names, and examples on unwrapped lines."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.metavar = _argument_name(param)
            shown = (param.metavar if param.required else f"[{param.metavar}]") + ("..." if param.nargs != 1 else "")
            param.get_usage_pieces = lambda _, shown=shown: [shown]
            param.display_type_rich = lambda **_: ""
        elif param.metavar is None:
            plain = _PLAIN_TYPES.get(param.bare_type().removeprefix("list[").rstrip("]"), "TEXT")
            param.metavar = "|".join(map(str, param.type_descriptor.choices or ())) or plain
    if command.epilog and "\b" not in command.epilog:
        title, end, lines = command.epilog.strip().removeprefix("[bold]").replace("\\[", "[").partition("[/bold]")
        text = title + (":\n" + lines.replace("\n", "\n    ") if end else "")
        command.epilog = "\n\n".join(f"\b\n{paragraph}" for paragraph in text.split("\n\n"))
    for child in getattr(command, "commands", {}).values():
        _make_plain(child)


def _argument_name(param: Any) -> str:
    return str(param.metavar or param.name.upper())
