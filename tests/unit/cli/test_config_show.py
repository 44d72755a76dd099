"""`duemq config show`: the value of each setting, and all places that give it; secrets are hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from duemq.cli.app import command_line
from duemq.cli.settings.settings import Settings

FILE = """\
listen = "0.0.0.0:8787"  # a comment
kafka.password = "hush-kafka"
node = { token = "hush-node", name = "n1" }

[limits]
max_delay = "3d"
"max_headers" = 5

[timing]
levels = "1s 5s 1m"

[destinations.bill-ing]
url = "https://a.example.com/x"

[destinations.bill-ing.credentials]
token = "hush-destination"
"""


def show(*words: str) -> Result:
    return CliRunner().invoke(command_line("config"), ["config", "show", *words], catch_exceptions=False)


def settings_of(*words: str) -> dict[str, dict[str, Any]]:
    ended = show(*words, "--json")
    assert ended.exit_code == 0, ended.stderr
    assert "hush" not in ended.stdout
    return {one["key"]: one for one in orjson.loads(ended.stdout)["settings"]}


def test_each_setting_has_its_value_and_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "duemq.toml"
    path.write_text(FILE)
    monkeypatch.setenv("DUEMQ_LISTEN", "0.0.0.0:1")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__BILL_ING__TIMEOUT", "5000")
    monkeypatch.setenv("DUEMQ_CONFIG", str(path))
    options = ("--listen", "127.0.0.1:2", "--set", "storage.retention=36h")
    assert settings_of(*options) == {
        one["key"]: one
        for one in (
            {"key": "listen", "value": "127.0.0.1:2", "sources": ["option", "DUEMQ_LISTEN", f"{path}:1"]},
            {"key": "limits.max_delay", "value": 259_200_000, "sources": [f"{path}:6"]},
            {"key": "limits.max_headers", "value": 5, "sources": [f"{path}:7"]},
            {"key": "timing.levels", "value": [1000, 5000, 60_000], "sources": [f"{path}:10"]},
            {"key": "storage.retention", "value": 129_600_000, "sources": ["option"]},
            {"key": "kafka.password", "value": "(hidden)", "sources": [f"{path}:2"]},
            {"key": "node.name", "value": "n1", "sources": [f"{path}:3"]},
            {"key": "node.token", "value": "(hidden)", "sources": [f"{path}:3"]},
            {"key": "destinations.bill-ing.url", "value": "https://a.example.com/x", "sources": [f"{path}:13"]},
            {"key": "destinations.bill-ing.credentials", "value": "(hidden)", "sources": [f"{path}:15"]},
            {
                "key": "destinations.bill-ing.timeout", "value": "5000",
                "sources": ["DUEMQ_DESTINATIONS__BILL_ING__TIMEOUT"],
            },
        )
    }  # fmt: skip
    lines = show(*options).stdout.splitlines()
    assert f"listen\t127.0.0.1:2\toption, not DUEMQ_LISTEN, not {path}:1" in lines
    assert f"timing.levels\t1s 5s 1m\t{path}:10" in lines and f"kafka.password\t(hidden)\t{path}:2" in lines


def test_all_shows_every_setting_and_hides_every_secret(tmp_path: Path) -> None:
    secrets = [
        f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for key in field.annotation.model_fields
        if any(word in key for word in ("password", "secret", "token", "api_keys"))
    ]
    assert len(secrets) >= 6
    given = {key: "hush-hush-hush" for key in secrets}
    path = tmp_path / "duemq.toml"
    together = {"delay_files.s3_access_key": "a-key"}
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in (given | together).items()))
    shown = settings_of("--all", "--config", str(path))
    assert {key: shown[key]["value"] for key in secrets} == dict.fromkeys(secrets, "(hidden)")
    assert shown["data"] == {"key": "data", "value": "duemq-data", "sources": ["default"]}
    assert shown["http.open"]["value"] is False
    named = {name for name in Settings.model_fields if name != "destinations"}
    assert {key.partition(".")[0] for key in shown} == named


def test_a_file_that_is_wrong_is_one_line(tmp_path: Path) -> None:
    assert show("--config", "/nowhere").stderr == (
        "duemq: the settings file /nowhere cannot be read: No such file or directory\n"
    )
    (tmp_path / "a.toml").write_text("[kafka]\npassword = 5\nwrong = 1\n")
    ended = show("--config", str(tmp_path / "a.toml"))
    assert ended.exit_code == 1 and "kafka.wrong is not a setting" in ended.stderr and "5" not in ended.stderr
    nothing = show()
    assert (nothing.exit_code, nothing.stdout) == (0, "") and "--all" in nothing.stderr
