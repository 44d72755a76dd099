"""`duemq open`"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from duemq.cli.session import Url, examples, server_url

EXAMPLES = examples("duemq open", "duemq --profile prod open", "duemq open --print | xclip")


def open_console(
    only_print: Annotated[bool, typer.Option("--print", help="Only print the console's URL.")] = False, url: Url = None
) -> None:
    """Open the console in a browser, or print its URL if there is none here."""
    address = f"{server_url(url)}/console/"
    if only_print or not _opened(address):
        typer.echo(address)


def _opened(address: str) -> bool:
    import webbrowser

    has_desktop = sys.platform != "linux" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "BROWSER")
    )  # without a display, Python would start a text browser in this terminal
    try:
        return has_desktop and webbrowser.open(address)
    except (OSError, webbrowser.Error):
        return False
