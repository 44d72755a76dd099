import os
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from duemq.delay.node import cleaning_trigger
from duemq.delay.watermarks import Watermarks
from duemq.model.errors import BadConfig
from duemq.proxy.config import Settings
from duemq.proxy.ingress import Limits
from duemq.proxy.wiring import node_options

TOP = Path(__file__).resolve().parents[2]
SHIPPED = TOP / "conf" / "duemq.toml"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DUEMQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str) -> Path:
        path = tmp_path / "duemq.toml"
        path.write_text(text)
        return path

    return write_file


def keys(model: BaseModel, before: str = "") -> Iterator[str]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from keys(value, f"{name}.")
        else:
            yield before + name


def test_the_shipped_file_has_every_key_and_its_default() -> None:
    assert Settings.load(SHIPPED) == Settings() == Settings.load()
    raw = tomllib.loads(SHIPPED.read_text())
    named = {
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in raw.items()
        for key in (value if isinstance(value, dict) else [name])
    }
    assert named == set(keys(Settings()))


def test_the_table_of_the_docs_has_every_key_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\S+)` \| `(.*?)` \|", (TOP / "docs" / "configuration.md").read_text(), re.MULTILINE))
    assert set(rows) == set(keys(Settings()))
    told: dict[str, Any] = {}
    for key, value in rows.items():
        section, _, name = key.rpartition(".")
        (told.setdefault(section, {}) if section else told)[name] = [] if value == "[]" else value
    assert Settings.load(overrides=told) == Settings()


def test_the_limits_of_the_gate_are_the_same_by_default() -> None:
    assert Settings().ingress_limits() == Limits()


def test_later_layers_win(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('listen = "[::1]:1"\nshards = 3\n[limits]\nmax_delay = "3y"\nmax_headers = 3\nmax_key_bytes = "3KiB"')
    monkeypatch.setenv("DUEMQ_CONFIG", str(path))
    monkeypatch.setenv("DUEMQ_SHARDS", "4")
    monkeypatch.setenv("DUEMQ_LIMITS__MAX_DELAY", "4h")
    monkeypatch.setenv("DUEMQ_TOPICS__ALLOWED", "orders.*, mail")
    monkeypatch.setenv("DUEMQ_TIMING__LEVELS", "1s 1m")
    settings = Settings.load(overrides={"data": None, "limits": {"max_delay": "5h"}})
    assert (settings.host, settings.port, settings.shards) == ("::1", 1, 4)
    assert (settings.limits.max_headers, settings.limits.max_key_bytes) == (3, 3072)
    assert settings.ingress_limits().topics == ("orders.*", "mail")
    assert settings.ingress_limits().time.levels == (1000, 60_000)
    assert settings.ingress_limits().time.max_delay_ms == 18_000_000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shards = 0", "shards = 0: .*greater than or equal to 1"),
        ("shards = true", "shards = True"),
        ('listen = "8787"', "listen = '8787': it must be HOST:PORT"),
        ('listen = "h:70000"', "listen = 'h:70000'"),
        ("colour = 1", "colour is not a setting; known are data, listen"),
        ("[limits]\nmax_dely = 1", r"limits\.max_dely is not a setting; known are max_delay"),
        ('[limits]\nmax_delay = "-1s"', r"limits\.max_delay = '-1s': it is negative"),
        ('[limits]\nmax_delay = "long"', r"limits\.max_delay = 'long': it is not a duration such as"),
        ('[limits]\nmax_payload_bytes = "big"', r"limits\.max_payload_bytes = 'big': it is not a size such as"),
        ('[timing]\npast_due = "maybe"', r"timing\.past_due = 'maybe': .*'deliver' or 'reject'"),
        ('[timing]\nlevels = ""', r"timing\.levels"),
        ('[topics]\nallowed = ["a b"]', r"topics\.allowed = \['a b'\]: 'a b' is neither"),
        ('[topics]\ndead_letter = "duemq.ledger"', r"topics\.dead_letter = 'duemq.ledger': .*duemq's own"),
        ('[far]\nload_ahead = "61m"', r"far\.load_ahead = '61m': at most 30 minutes for each of far\.seal_windows"),
        (
            '[far]\nload_ahead = "31m"\nseal_windows = 1',
            r"far\.load_ahead = '31m': .* here 1800000 ms: .* sealed again",
        ),
        ('[storage]\nclean_mode = "never"', r"storage\.clean_mode = 'never': .*'continuous' or 'off_peak'"),
        ('[storage]\nclean_at = "24:00"', r"storage\.clean_at = '24:00': it must be HH:MM"),
        ('[storage]\nmin_history = "59s"', r"storage\.min_history"),
        ("[storage]\nclean_percent = 0", r"storage\.clean_percent = 0"),
        ("[storage]\nrefuse_percent = 101", r"storage\.refuse_percent = 101"),
        (
            "[storage]\nshorten_percent = 91",
            r"storage = .*shorten_percent \(91\) and refuse_percent \(90\) must",
        ),
        ("listen: 1", "is not TOML"),
    ],
)
def test_wrong_values_name_the_key_and_what_is_allowed(write: Any, text: str, told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        Settings.load(write(text))


def test_windows_may_be_loaded_as_early_as_they_are_not_sealed(write: Any) -> None:
    far = Settings.load(write('[far]\nload_ahead = "90m"\nseal_windows = 3')).far
    assert (far.load_ahead, far.seal_windows) == (5_400_000, 3)


def test_wrong_variables_and_missing_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match="cannot be read"):
        Settings.load("no-such-file.toml")
    monkeypatch.setenv("DUEMQ_URL", "http://127.0.0.1:8787")
    monkeypatch.setenv("DUEMQ_SPARK_JARS", "/jars")
    assert Settings.load() == Settings()
    monkeypatch.setenv("DUEMQ_LIMTS__MAX_DELAY", "1h")
    with pytest.raises(BadConfig, match="DUEMQ_LIMTS__MAX_DELAY is not a setting"):
        Settings.load()


def test_api_keys_are_never_shown(write: Any) -> None:
    with pytest.raises(BadConfig) as error:
        Settings.load(write('[http]\napi_keys = [["secret"]]'))
    assert "secret" not in str(error.value)
    assert "a-secret" not in repr(Settings.load(overrides={"http": {"api_keys": ["a-secret"]}}))


def test_the_settings_of_cleaning_reach_the_node() -> None:
    usual = node_options(Settings(), alone=True, trims=True)
    assert (usual.clean_at, usual.marks, usual.pace.short_history_ms) == (None, Watermarks(), 600_000)
    assert cleaning_trigger(usual).interval == timedelta(minutes=1)
    storage = {
        "clean_mode": "off_peak", "clean_at": "03:30", "clean_percent": 1, "shorten_percent": 2, "refuse_percent": 3,
        "min_free_bytes": 4, "min_history": "5m", "history_retention": "6m",
    }  # fmt: skip
    own = node_options(Settings.load(overrides={"storage": storage}), alone=True, trims=True)
    assert own.marks == Watermarks(1, 2, 3, 4)
    assert (own.pace.short_history_ms, own.pace.history_ms) == (300_000, 360_000)
    now = datetime(2026, 11, 21, 3, 31, tzinfo=UTC)
    assert cleaning_trigger(own).get_next_fire_time(None, now) == datetime(2026, 11, 22, 3, 30, tzinfo=UTC)
