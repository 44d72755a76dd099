"""The words of docs/reference/glossary.md: where a word was replaced, its old form does not come back."""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.proxy.openapi import describe
from duemq.proxy.table import ENDPOINTS
from tests.support.house.tree import PACKAGES, ROOT

OLD_NAMES = {
    r"[Aa]dopt(s|ed|er|ing|ion|ions)?(_\w+)?": "import",
    r"Gather(ing)?|gather_ms": "linger",
    r"Far[A-Z]\w*|far_(fault|turn|counts|policy|worker)": "delay file, tiering",
    r"fates?|Fates|NO_FATES": "outcome",
    r"Standing(Keeper)?": "health",
    r"ReadAhead|warm_part": "prefetch",
    r"Pace|clean_(at|mode|percent|interval_s)|history_retention|min_history": "limits, purge, retention",
    r"(no_)?fault|Fault": "failpoint",
    r"TargetRefused|_?target_refused": "destination",
    r"[gs]et_place": "consumer cursor",
    r"_?MOST_\w+": "MAX_",
    r"tail_bytes": "buffer_bytes",
    r"_?(found|said|wanted|told|held|here|kept|handed|landed|settled)": "a noun for what it is",
    r"Lanes|_?Lane|Tails|Upkeep|_?upkeep|Mirror|Surroundings": "worker pool, fetcher, maintenance, cache, shard host",
    r"Intake|Glance|_?take_in": "imported file info, file summary, import file",
    r"_?note_\w+": "record",
    r"_?look_at\w*": "look up, check, refresh",
}
"""Names in the code, as patterns of whole names, and what is said now."""

OLD_MACHINE_NAMES = (
    r"/v1/adoptions", r"\bduemq adopt\b",
    r"(?<!bench\.)\bfar\.(adopt|seal|load|rewrite|s3)_", r"\bgather_ms\b", r"\btail_bytes\b",
    r"\bhistory_retention\b", r"\bmin_history\b", r"\bclean_(at|mode|percent)\b", r"\bduemq_adoptions_total\b",
    r"\bduemq_far_", r"\bduemq_cleanings_total\b", r"\bduemq_target_refused\b", r"\[far\]", r"\bduemq spark import\b",
)  # fmt: skip
OLD_TEXTS = {
    r"(?<!`)\badopt(s|ed|er|ing|ions?)?\b(?![`\"'])": "import",
    r"(?<!`)\bfates?\b(?![`\"'])": "outcome",
    r"\bclean(s|ings?)\b(?! out of turn at 75)": "purge",
    r"\bconsumer's place\b": "consumer cursor",
    r"\bin the destination\b.*\bkey\b|\bkey in the destination\b": "topic, if it is one",
    r"\bfar\.\*": "delay_files.*",
    r"target_lookup|\?wanted=": "topic, pending",
}
"""Turns in strings and comments of the code, and in the API's own document. Formats keep their old words."""

OLD_STATES = r"`wanted`|\bstate=(wanted|adopted|refused)\b"
"""Of an import, on the pages; in the code these are names of other things, too."""


def tokens_of(path: Path, *kinds: int) -> Iterator[tuple[int, str]]:
    """The tokens of these kinds in a Python file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in kinds:
            yield token.start[0], token.string


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_old_name_is_left_in_the_code(package: Path) -> None:
    old = re.compile("|".join(f"(?:{pattern})" for pattern in OLD_NAMES))
    left = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted(package.rglob("*.py"))
        for line, name in tokens_of(path, tokenize.NAME)
        if old.fullmatch(name)
    ]
    assert left == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_old_word_is_left_in_strings_and_comments(package: Path) -> None:
    old = re.compile("|".join(OLD_TEXTS))
    left = [
        f"{path.relative_to(ROOT)}:{line} {found[0]}"
        for path in sorted(package.rglob("*.py"))
        for line, text in tokens_of(path, tokenize.STRING, tokenize.COMMENT)
        if (found := old.search(text))
    ]
    assert left == []


def test_no_old_word_is_left_in_the_document_of_the_api() -> None:
    text = json.dumps(describe(ENDPOINTS))
    assert [found[0] for found in re.finditer("|".join((*OLD_TEXTS, *OLD_MACHINE_NAMES)), text)] == []


@pytest.mark.heavy
def test_no_old_setting_path_metric_or_command_is_left() -> None:
    old = re.compile("|".join(OLD_MACHINE_NAMES))
    pages = [
        ROOT / "README.md",
        ROOT / "compose.yaml",
        ROOT / "conf/duemq.toml",
        *ROOT.glob("docs/**/*.md"),
        *(path for path in ROOT.glob("examples/*") if path.is_file()),
    ]
    code = [path for package in PACKAGES for path in package.rglob("*.py")]
    left = [
        f"{path.relative_to(ROOT)}:{number} {found[0]}"
        for path in (*pages, *code)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := old.search(line) or (re.search(OLD_STATES, line) if path in pages else None)) is not None
    ]
    assert left == []


def test_the_glossary_has_at_most_sixty_words() -> None:
    words = re.findall(r"^- \*\*", (ROOT / "docs/reference/glossary.md").read_text(), re.MULTILINE)
    assert 0 < len(words) <= 60
