"""What browsers load: named by its hash, kept for ever, and the same as when it was taken from the registry."""

from __future__ import annotations

import json
import re
from hashlib import sha256

from duemq.dev.vendor_assets import FOLDER, MANIFEST, PACKAGES
from tests.support.http.console_site import ConsoleSite, with_console


def test_third_party_files_are_as_the_manifest_says() -> None:
    packages = json.loads(MANIFEST.read_text())["packages"]
    assert [(one["name"], one["version"]) for one in packages] == [(one.name, one.version) for one in PACKAGES]
    for package in packages:
        assert package["licence"] and any("LICENSE" in name for name in package["sha256"])
        for name, digest in package["sha256"].items():
            assert sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in FOLDER.parent.rglob("*"):
        if path.suffix in (".html", ".css") or path.name in ("console.js", "live.js", "theme.js"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path.name


def test_an_asset_is_kept_for_ever_under_the_name_of_its_content() -> None:
    async def scenario(site: ConsoleSite) -> None:
        text = await site.page("/")
        names = set(re.findall(r'(?:src|href)="\./assets/([^"]+)"', text))
        assert {name.split(".")[0] for name in names} == {"console", "htmx", "icon", "live", "theme", "uplot"}
        for name in names:
            response = await site.ask("GET", f"/assets/{name}")
            assert response.status_code == 200 and "immutable" in response.headers["Cache-Control"]
            assert sha256(response.content).hexdigest()[:12] in name
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        for name in ("console.css", "console.000000000000.css", "manifest.json", "..%2Fapp.py", "%2e%2e"):
            response = await site.ask("GET", f"/assets/{name}")
            assert response.status_code == 404 and response.headers["Cache-Control"] == "no-store", name

    with_console(scenario)
