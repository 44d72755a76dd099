"""Hooks of MkDocs: reference pages made from the code, and links to files that are no pages."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

from duemq.cli.app import command_line
from duemq.proxy.openapi import describe
from duemq.proxy.table import ENDPOINTS

sys.path.append(str(Path(__file__).parents[2]))

from tests.support.docs.metrics_page import metrics_page
from tests.support.docs.settings_page import settings_page
from tests.support.docs.states_page import states_page

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {
        "http": http_api,
        "commands": commands,
        "settings": settings_page,
        "metrics": metrics_page,
        "states": states_page,
    }
    for name, content in made.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Gives a link to a file of the source its place in `extra.source`, or leaves its text if there is none."""
    source = config.extra.get("source", "")

    def outside(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        goal = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), path))
        if "://" in path or path.startswith("mailto:") or goal.startswith("docs/"):
            return match[0]
        return f"[{text}]({source}/{goal}{anchor})" if source else text

    # Python-Markdown wants four spaces where GitHub takes three.
    return re.sub(r"(?m)^   (?=\S)", "    ", _LINK.sub(outside, markdown))


def http_api() -> str:
    """Each call with its parameters, fields, answers and codes, as `/openapi.json` has them."""
    document = describe(ENDPOINTS)
    calls: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            calls.setdefault(operation["tags"][0], []).append("\n".join(_call(method.upper(), path, operation)))
    parts = [
        "# HTTP API, call by call",
        "Made from the routes, as `/openapi.json` is. Rules and examples: [HTTP API](api.md).",
    ]
    for tag, texts in calls.items():
        parts += [f"## {tag.capitalize()}", *texts]
    parts.append("## Shapes")
    for name, shape in sorted(document["components"]["schemas"].items()):
        parts.append("\n".join([f"### {name}", "", shape.get("description", ""), "", *_fields(shape)]))
    return "\n\n".join(parts) + "\n"


def _call(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {operation['summary']}\n\n`{method} {path}`\n\n{operation.get('description', '')}\n"
    for parameter in operation.get("parameters", ()):
        yield f"- `{parameter['name']}` ({parameter['in']}): {parameter.get('description', '')}"
    body = operation.get("requestBody", {}).get("content", {})
    yield from (f"- body: {_shape(content.get('schema', {}))} as `{media}`" for media, content in body.items())
    yield ""
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        shapes = sorted({_shape(one.get("schema", {})) for one in content.values()} - {""})
        told = ", ".join(shapes) if int(status) < 400 else ""
        yield f"- {status}: {answer.get('description', '')}{': ' if told else ''}{told}"


def _shape(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f"[{name}](#{name.lower()})" if name else ""


def _fields(shape: dict[str, Any]) -> Iterator[str]:
    required = shape.get("required", ())
    for name, field in shape.get("properties", {}).items():
        kind = _shape(field) or _shape(field.get("items", {})) or field.get("type", "")
        told = f"{kind}{', required' if name in required else ''}"
        yield (
            f"- `{name}` ({told}): {field.get('description', '')}"
            if told
            else f"- `{name}`: {field.get('description', '')}"
        )


def commands() -> str:
    """Each command with its help and options, as `--help` has them."""
    told = "Made from the help texts. Verbs, servers and exit codes: [command line](cli.md)."
    return "\n\n".join(["# Command line, all commands", told, *_commands(get_command(command_line()), "duemq")]) + "\n"


def _commands(command: Any, words: str) -> Iterator[str]:
    yield f"## {words}\n\n{escape(command.help or '')}"
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    yield "\n".join(f"- `{', '.join(one.opts)}`: {escape(one.help or '')}" for one in options)
    if command.epilog:
        yield f"```\n{command.epilog}\n```"
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _commands(inner, f"{words} {name}")
