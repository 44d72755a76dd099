"""Debian's Chromium, driven by Playwright, and axe-core, which looks for what keeps people out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
SIZES: dict[str, ViewportSize] = {
    "desktop": {"width": 1280, "height": 860},
    "phone": {"width": 390, "height": 844},
}
EACH_SIZE = [pytest.param("desktop", marks=pytest.mark.slow), "phone"]
"""For tests in both: `make test` takes the narrow one alone, where more goes wrong."""
# Without these it looks for hosts of its maker at every start.
_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_AXE, _AXE_SHA256 = "axe-core@4.14.1", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WITHIN_MS = 120_000  # a shared machine may be slow


def cannot(reason: str) -> NoReturn:
    """Skip the test; fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def install_chromium() -> None:
    if CHROMIUM.exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        cannot("there is no /usr/bin/chromium: install Debian's package chromium")
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        done = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True)
        if done.returncode:
            cannot(f"apt-get {command[0]} failed: {done.stderr[-300:]}")


def axe_source(folder: Path) -> str:
    """axe-core as it is in the npm registry, checked."""
    command = ["npm", "pack", "--json", "--ignore-scripts", _AXE]
    try:
        packed = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    except (OSError, subprocess.CalledProcessError) as error:
        cannot(f"axe-core cannot be had from the npm registry: {error}")
    with tarfile.open(folder / packed[0]["filename"]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        source = member.read()
    assert sha256(source).hexdigest() == _AXE_SHA256
    return source.decode()


@contextmanager
def chromium() -> Iterator[Browser]:
    install_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A user at a browser. `complaints`: errors of scripts, and violations of the pages' policy."""

    def __init__(self, browser: Browser, url: str, size: str, scheme: Any = "light", **options: Any) -> None:
        self.url, self.complaints = url, list[str]()
        self.context: BrowserContext = browser.new_context(
            viewport=SIZES[size], color_scheme=scheme, timezone_id="Europe/Berlin", locale="en-GB",
            has_touch=size == "phone", **options,
        )  # fmt: skip
        self.context.set_default_timeout(WITHIN_MS)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, kind: str, text: str) -> None:
        # That an answer has a status of 4xx is for the tests that ask for it.
        if kind == "error" and "Failed to load resource" not in text:
            self.complaints.append(text)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.url}/console/{path}")

    def log_in(self, key: str) -> None:
        self.go("login")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_url(f"{self.url}/console/")

    def open_filters(self) -> None:
        """On a phone they wait until they are asked for."""
        for way in (
            self.page.get_by_role("button", name="Filter", exact=True),
            self.page.locator("form.filters summary"),
        ):
            if way.is_visible():
                way.click()

    def violations(self, axe: str) -> list[str]:
        """What axe-core finds against WCAG AA in the page as it is."""
        self.page.evaluate(axe)
        found = self.page.evaluate("rules => axe.run(document, {runOnly: rules})", _RULES)["violations"]
        return [f"{one['id']}: {node['html'][:200]} {node['any'][:1]}" for one in found for node in one["nodes"]]

    def is_too_wide(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
