"""What docs/cluster.md says of rights on Kafka, read from the page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"### {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def commands() -> list[str]:
    """The lines that grant rights, with a loop over names taken apart."""
    script = section("Kafka rights").partition("```sh\n")[2].partition("```")[0]
    script = re.sub(
        r"for (\w+) in ([^;]+); do\s+(.*?);?\s+done",
        lambda loop: "\n".join(loop[3].replace(f"${loop[1]}", name) for name in loop[2].split()),
        script,
        flags=re.DOTALL,
    )
    return [line.strip() for line in script.splitlines() if line.strip().startswith("acls --")]
