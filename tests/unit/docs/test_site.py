"""The pages as a whole: each has a room and a place in the site, a line per sentence, and a size that only falls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.docs.blocks import ELSEWHERE, NOT_RUN, PARTLY, ROOT, SERVED, blocks, is_run
from tests.support.docs.sentences import by_sentences, sentences

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOMS = {"start", "guides", "operate", "reference", "explain", "adr"}
WORDS, WORDS_ABOVE = 35_000, 2_773
"""Of all pages but decisions, and of README and CONTRIBUTING. Lower them when they have become fewer; raise none."""
RUN = 0.45
"""The share of blocks that a test runs as printed. Raise it when it has become more."""


def test_every_page_is_in_a_room() -> None:
    assert {page.relative_to(DOCS).parts[0] for page in PAGES} == ROOMS | {"index.md"}


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page.parent.name != "adr"}
    made = {
        f"reference/{name}.md" for name in ("http", "commands", "settings", "metrics", "states")
    }  # conf/site/hooks.py
    assert sorted(listed) == sorted(pages | made | {"adr/README.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_each_sentence_has_a_line(page: Path) -> None:
    assert page.read_text() == by_sentences(page.read_text())


def test_sentences_are_told_apart() -> None:
    assert sentences("One (e.g. this. It stays.) ends. `a. B` is code. See it! **Bold.** Next") == [
        "One (e.g. this. It stays.) ends.", "`a. B` is code.", "See it!", "**Bold.**", "Next",
    ]  # fmt: skip


def test_the_pages_do_not_grow() -> None:
    def words(pages: Iterable[Path]) -> int:
        return sum(len(page.read_text().split()) for page in pages)

    assert words(page for page in PAGES if page.parent.name != "adr") <= WORDS
    assert words([ROOT / "README.md", ROOT / "CONTRIBUTING.md"]) <= WORDS_ABOVE


def test_each_block_is_run_by_a_test_or_has_a_reason() -> None:
    found = list(blocks())
    run = [block for block in found if is_run(block)]
    assert {block.page for block in found} == {*SERVED, *ELSEWHERE, *NOT_RUN}
    assert all((ROOT / test).exists() for test in (*ELSEWHERE.values(), *(test for test, _ in PARTLY.values())))
    for page, (_, begins) in PARTLY.items():
        assert sum(block.page == page and is_run(block) for block in found) == len(begins), page
    assert len(run) >= RUN * len(found), f"{len(run)} of {len(found)}"
