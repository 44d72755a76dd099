import os
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring import log_format, startup
from duemq.cli.wiring.import_policy import import_policy
from duemq.cli.wiring.node_options import node_options
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.delay.node import until_purge
from duemq.model.errors import BadConfig
from duemq.proxy.request.ingress import MessageLimits
from duemq.storage.object_store import ObjectStore
from tests.support.docs.settings_page import settings, settings_page

TOP = Path(__file__).resolve().parents[3]
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
        elif name != "destinations":  # sections by name, of which there is none
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


def test_the_page_of_settings_has_every_key_its_default_and_a_meaning() -> None:
    page = settings_page()
    assert [one.key for one in settings() if not one.meaning] == []
    assert sorted(re.findall(r"^\| `(\S+)` \| `.*?` \| .+ \|$", page, re.MULTILINE)) == sorted(keys(Settings()))
    told: dict[str, Any] = {}
    for key, value in re.findall(r"^\| `(\S+)` \| `(.*?)` \|", page, re.MULTILINE):
        section, _, name = key.rpartition(".")
        (told.setdefault(section, {}) if section else told)[name] = tomllib.loads(f"value = {value}")["value"]
    assert Settings.load(overrides=told) == Settings()


def test_the_limits_of_the_gate_are_the_same_by_default() -> None:
    assert Settings().ingress_limits() == MessageLimits()


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


def test_names_of_variables_may_be_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("duemq_shards", "3")
    monkeypatch.setenv("Duemq_Limits__max_delay", "4h")
    settings = Settings.load()
    assert (settings.shards, settings.limits.max_delay) == (3, 4 * 3_600_000)


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
        (
            '[delay_files]\nload_ahead = "61m"',
            r"delay_files\.load_ahead = '61m': at most 30 minutes for each of delay_files\.seal_windows",
        ),
        (
            '[delay_files]\nload_ahead = "31m"\nseal_windows = 1',
            r"delay_files\.load_ahead = '31m': .* here 1800000 ms: .* sealed again",
        ),
        ('[storage]\npurge_mode = "never"', r"storage\.purge_mode = 'never': .*'continuous' or 'off_peak'"),
        ('[storage]\npurge_at = "24:00"', r"storage\.purge_at = '24:00': it must be HH:MM"),
        ('[storage]\nmin_retention = "59s"', r"storage\.min_retention"),
        ("[storage]\npurge_percent = 0", r"storage\.purge_percent = 0"),
        ("[storage]\nrefuse_percent = 101", r"storage\.refuse_percent = 101"),
        (
            "[storage]\nshorten_percent = 91",
            r"^storage: .*shorten_percent \(91\) and refuse_percent \(90\) must",
        ),
        ("listen: 1", "is not TOML"),
    ],
)
def test_wrong_values_name_the_key_and_what_is_allowed(write: Any, text: str, told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        Settings.load(write(text))


def test_windows_may_be_loaded_as_early_as_they_are_not_sealed(write: Any) -> None:
    far = Settings.load(write('[delay_files]\nload_ahead = "90m"\nseal_windows = 3')).delay_files
    assert (far.load_ahead, far.seal_windows) == (5_400_000, 3)


def test_a_settings_file_must_be_there() -> None:
    with pytest.raises(BadConfig, match="cannot be read"):
        Settings.load("no-such-file.toml")


def services(*names: str) -> dict[str, str]:
    """What Kubernetes sets in a pod for services of these names, each with a port called http."""
    found: dict[str, str] = {}
    for name in names:
        own, url = name.upper().replace("-", "_"), "tcp://10.96.0.7:8787"
        found |= {
            f"{own}_SERVICE_HOST": "10.96.0.7", f"{own}_SERVICE_PORT": "8787", f"{own}_SERVICE_PORT_HTTP": "8787",
            f"{own}_PORT": url, f"{own}_PORT_8787_TCP": url, f"{own}_PORT_8787_TCP_PROTO": "tcp",
            f"{own}_PORT_8787_TCP_PORT": "8787", f"{own}_PORT_8787_TCP_ADDR": "10.96.0.7",
            f"{own}_PORT_53_UDP_ADDR": "10.96.0.7",
        }  # fmt: skip
    return found


@pytest.mark.parametrize("strict", ["0", "1"])
def test_services_of_kubernetes_may_have_any_name(strict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "duemq", "duemq-node", "duemq-proxy", "duemq-kafka", "duemq-zookeeper", "duemq-http", "duemq-node-headless",
        "duemq-kafka--ui", "duemq-node--link", "duemq--x", "duemq-data", "duemq-3",
    )  # fmt: skip
    for name, value in services(*names).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DUEMQ_STRICT_ENV", strict)
    assert Settings.load() == Settings()
    assert Settings.strange_variables() == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("DUEMQ_VERSION", ""),
        ("DUEMQ_LISTN", "DUEMQ_LISTEN"),
        ("DUEMQ_LISTEN__ON", "DUEMQ_LISTEN"),
        ("DUEMQ_LIMTS__MAX_DELAY", "DUEMQ_LIMITS__MAX_DELAY"),
        ("DUEMQ_HTTP_API_KEYS", "DUEMQ_HTTP__API_KEYS"),
        ("DUEMQ_NODE_LINK_PORT", "DUEMQ_NODE__LINK_PORT"),
        ("DUEMQ_API_KEYS", "DUEMQ_API_KEY"),
    ],
)
def test_a_variable_that_only_begins_as_settings_do_stops_nothing(
    name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "9000")
    assert Settings.load() == Settings()
    (told,) = Settings.strange_variables()
    assert told.startswith(f"the environment variable {name} is not a setting; the nearest one is DUEMQ_{nearest[6:]}")
    monkeypatch.setenv("DUEMQ_STRICT_ENV", "1")
    with pytest.raises(BadConfig, match=f"{name} is not a setting"):
        Settings.load()


def test_variables_of_others_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUEMQ_URL", "DUEMQ_API_KEY", "DUEMQ_SPARK_JARS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("DUEMQ_STRICT_ENV", "1")
    assert Settings.load() == Settings()


def test_a_variable_of_a_section_is_a_setting_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEMQ_LIMITS__MAX_DELY", "1h")
    with pytest.raises(BadConfig, match=r"limits\.max_dely is not a setting; known are max_delay"):
        Settings.load()


def test_a_server_warns_once_of_each_strange_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_format, "set_up", lambda level, form: None)
    for name, value in (services("duemq-node") | {"DUEMQ_VERSION": "1", "DUEMQ_HTTP_API_KEYS": "a"}).items():
        monkeypatch.setenv(name, value)
    startup.begin(None, {}, ())
    assert [record.message.split()[3] for record in caplog.records] == ["DUEMQ_VERSION", "DUEMQ_HTTP_API_KEYS"]


@pytest.mark.parametrize(
    "section", [name for name in Settings.model_fields if isinstance(getattr(Settings(), name), BaseModel)]
)
def test_a_whole_section_is_never_shown(section: str, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match=f"^{section}: it is a section: set its keys, such as {section}\\.") as of_file:
        Settings.load(write(f'{section} = "s3cret"'))
    monkeypatch.setenv(f"DUEMQ_{section.upper()}", '{"password": "s3cret"}')
    with pytest.raises(BadConfig, match="it is a section") as of_variable:
        Settings.load()
    assert "s3cret" not in f"{of_file.value} {of_variable.value}"


def test_api_keys_are_never_shown(write: Any) -> None:
    with pytest.raises(BadConfig) as error:
        Settings.load(write('[http]\napi_keys = [["secret"]]'))
    assert "secret" not in str(error.value)
    assert "a-secret" not in repr(Settings.load(overrides={"http": {"api_keys": ["a-secret"]}}))


@pytest.mark.parametrize(
    ("far", "said"),
    [
        ({"import_from": "s3://b"}, "delay_files.import_from = 's3://b': .* it must be s3://BUCKET/KEY"),
        ({"import_from": "/a,s3://bucket/../x"}, r"no part of an object's key may be empty, \. or \.\."),
        ({"import_from": "gs://bucket/x"}, "must be an absolute path, or s3://BUCKET/PREFIX"),
        ({"s3_endpoint": "minio:9000"}, "delay_files.s3_endpoint = 'minio:9000': it must be the origin of a store"),
        ({"s3_secret_key": "hushhush"}, "s3_access_key and s3_secret_key go together"),
        (
            {"s3_secret_key": ["hushhush"], "s3_access_key": "k"},
            "delay_files.s3_secret_key: Input should be a valid string",
        ),
    ],
)
def test_a_store_to_take_files_in_from_is_named_rightly(far: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as error:
        Settings.load(overrides={"delay_files": far})
    assert "hushhush" not in str(error.value)


def test_places_to_take_files_in_from_are_folders_and_prefixes() -> None:
    own = {"s3_endpoint": "http://minio:9000", "s3_access_key": "k", "s3_secret_key": "hushhush"}
    settings = Settings.load(overrides={"delay_files": {"import_from": "/shared,s3://bucket/jobs", **own}})
    policy = import_policy(settings)
    assert (policy.folders, policy.prefixes) == ((Path("/shared"),), ("s3://bucket/jobs",))
    assert policy.store == ObjectStore("http://minio:9000", "", "k", "hushhush")
    assert "hushhush" not in repr(settings) + repr(policy)
    assert policy.refuse_folder("s3://bucket/jobs/1/a.parquet") is None
    assert "delay_files.import_from" in (policy.refuse_folder("s3://bucket/other") or "")


def test_the_settings_of_cleaning_reach_the_node() -> None:
    usual = node_options(Settings(), alone=True, trims=True)
    assert (usual.purge_at, usual.marks, usual.cycle_limits.min_retention_ms) == (None, Watermarks(), 600_000)
    now = datetime(2026, 11, 21, 3, 31, tzinfo=UTC)
    assert until_purge(usual, now) == 60
    storage = {
        "purge_mode": "off_peak", "purge_at": "03:30", "purge_percent": 1, "shorten_percent": 2, "refuse_percent": 3,
        "min_free_bytes": 4, "min_retention": "5m", "retention": "6m",
    }  # fmt: skip
    own = node_options(Settings.load(overrides={"storage": storage}), alone=True, trims=True)
    assert own.marks == Watermarks(1, 2, 3, 4)
    assert (own.cycle_limits.min_retention_ms, own.cycle_limits.retention_ms) == (300_000, 360_000)
    assert now + timedelta(seconds=until_purge(own, now)) == datetime(2026, 11, 22, 3, 30, tzinfo=UTC)
    assert until_purge(own, now - timedelta(hours=1)) == 59 * 60
