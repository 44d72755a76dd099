"""`helm`, built from its Go module, and the manifests that it renders of the chart."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.destinations.golang import built
from tests.support.servers.real_servers import need

CHART = Path(__file__).parents[3] / "conf" / "helm" / "duemq"
_HELM = ("helm.sh/helm/v3/cmd/helm", "v3.19.5")

Manifest = dict[str, Any]


class HelmRefuses(Exception):
    """Its message."""


@dataclass(frozen=True)
class Helm:
    program: Path

    def render(
        self, values: Mapping[str, Any], name: str = "duemq", namespace: str = "mail", chart: Path = CHART
    ) -> list[Manifest]:
        """The manifests of a release. Raises HelmRefuses."""
        told = self._run("template", name, str(chart), "--namespace", namespace, values=values)
        return [one for one in yaml.safe_load_all(told) if one]

    def notes(self, values: Mapping[str, Any], folder: Path) -> str:
        """The text after an installation, which helm prints only if it reaches a cluster: it is rendered as a manifest
        of a copy of the chart in `folder`. Raises HelmRefuses."""
        chart = Path(shutil.copytree(CHART, folder / "chart"))
        text = (chart / "templates" / "NOTES.txt").read_text()
        manifest = "kind: Notes\ntext: |\n" + "".join(f"  {line}\n" for line in text.splitlines())
        (chart / "templates" / "notes.yaml").write_text(manifest)
        (told,) = (one["text"] for one in self.render(values, chart=chart) if one["kind"] == "Notes")
        return str(told)

    def lint(self, values: Mapping[str, Any]) -> str:
        """Raises HelmRefuses, of warnings, too."""
        return self._run("lint", str(CHART), "--strict", values=values)

    def _run(self, *words: str, values: Mapping[str, Any]) -> str:
        command = [str(self.program), *words, "--values", "-", "--kube-version", "1.37.0"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)
        if done.returncode != 0:
            raise HelmRefuses(done.stderr + done.stdout)
        return done.stdout


@pytest.fixture(scope="session")
def helm() -> Iterator[Helm]:
    """Found on the PATH, or built. Skips the test if neither works; fails it in CI."""
    found = shutil.which("helm")
    yield Helm(Path(found) if found else need(lambda: built(*_HELM)))
