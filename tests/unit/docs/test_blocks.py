"""Blocks of the pages can be copied: no curl option that is newer than the systems people have, no variable without a
value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duemq.cli.settings.settings import Settings
from tests.support.old_curl import NEWER

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SETTINGS = re.compile(r"^```toml\n(# /etc/duemq/duemq\.toml.*?)^```$", re.DOTALL | re.MULTILINE)
_OWN = ("DUEMQ", "JSON")  # what blocks call the server and the header of JSON


def test_no_block_has_an_option_that_old_curls_do_not_know() -> None:
    commands = [line for page in PAGES for block in _BLOCK.findall(page.read_text()) for line in block.splitlines()]
    asked = [line for line in commands if re.search(r"\bcurl\b", line)]
    assert len(asked) > 20
    assert [line for line in asked if NEWER.intersection(line.split())] == []


def test_settings_files_of_the_pages_can_be_loaded(tmp_path: Path) -> None:
    files = [code for page in PAGES for code in _SETTINGS.findall(page.read_text())]
    assert files
    for code in files:
        (tmp_path / "duemq.toml").write_text(code)
        Settings.load(tmp_path / "duemq.toml")


@pytest.mark.parametrize("name", _OWN)
def test_each_page_gives_its_variables_a_value_before_it_uses_them(name: str) -> None:
    for page in PAGES:
        code = "\n".join(_BLOCK.findall(page.read_text()))
        before, used, _ = code.partition(f"${name}")
        if re.search(rf"\${name}\b", code):
            assert used and re.search(rf"\b{name}=", before), page.name
