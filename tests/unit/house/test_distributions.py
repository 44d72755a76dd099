"""The three distributions: what each may import of the others, and their one version."""

from __future__ import annotations

import re
import subprocess

import grimp

import duemq
from tests.support.house.tree import PACKAGES, ROOT

DISTRIBUTIONS = {
    folder.name: {link.name for link in folder.glob("src/duemq/*") if link.is_symlink()}
    for folder in ROOT.glob("packages/*")
}
MAY_IMPORT = {"bench": {"bench", "dev", "pipeline"}, "dev": {"dev"}, "pipeline": {"pipeline"}}


def test_nothing_of_a_server_imports_another_distribution_even_inside_a_function() -> None:
    others = {name for names in DISTRIBUTIONS.values() for name in names}
    graph = grimp.build_graph("duemq")
    assert others == {"bench", "dev", "pipeline"} < {package.name for package in PACKAGES}
    wrong = [
        f"{importer} imports {imported}"
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if (to := imported.split(".")[1:2]) and to[0] in others
        if to[0] not in MAY_IMPORT.get((importer.split(".")[1:2] or [""])[0], ())
    ]
    assert wrong == []


def test_the_chart_and_the_changelog_have_the_version() -> None:
    chart = (ROOT / "conf/helm/duemq/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (.*)$", chart, re.MULTILINE) == [duemq.__version__] * 2
    releases = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == duemq.__version__


def test_a_tagged_commit_has_the_version_of_its_tag() -> None:
    asked = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    assert set(tags) <= {f"v{duemq.__version__}"}
