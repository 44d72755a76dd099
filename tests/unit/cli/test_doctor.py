"""What `duemq doctor` finds, and that each finding says what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from duemq.cli.doctor.certificates import check_certificates, files_of
from duemq.cli.doctor.configuration import check_configuration
from duemq.cli.doctor.examination import examine, role_of
from duemq.cli.doctor.finding import Finding, Role, Severity
from duemq.cli.doctor.folder import check_folder, file_system_of, judge_disk
from duemq.cli.doctor.kafka import check_brokers
from duemq.cli.doctor.machine import check_versions, judge_unit
from duemq.cli.doctor.server import judge_server
from duemq.cli.doctor.settings_file import check_settings_file
from duemq.cli.doctor.zookeeper import judge_zookeeper
from duemq.cli.settings.settings import Settings
from duemq.cluster.topics.internal_topics import ADMIN, BUFFER, LEDGER
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.model.disk_use import DiskUse
from duemq.model.errors import LogFailed
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.storage.data_folder import Folder

CLUSTER: dict[str, Any] = {
    "kafka": {"bootstrap": "b:9092", "replication_factor": 3, "min_insync_replicas": 2},
    "zookeeper": {"hosts": "a:1,b:1,c:1", "acl": "creator", "user": "u", "password": "p"},
}


def settings_of(**changes: Any) -> Settings:
    """Those of a good cluster, with changes: `section_name` or `name`."""
    document = {**CLUSTER, **{key: value for key, value in changes.items() if not isinstance(value, dict)}}
    for section, values in changes.items():
        if isinstance(values, dict):
            document[section] = {**document.get(section, {}), **values}
    return Settings(**document)


def bad(findings: list[Finding]) -> list[tuple[Severity, str]]:
    """Levels and texts of all that is not ok; each must say what to do."""
    for finding in findings:
        assert bool(finding.remedy) == (finding.level is not Severity.OK), finding
    return [(finding.level, finding.detail) for finding in findings if finding.level is not Severity.OK]


def one(findings: list[Finding], level: Severity, part: str) -> None:
    ((found, detail),) = bad(findings)
    assert found is level and part in detail, detail


# --- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_good_settings_are_ok(role: Role) -> None:
    assert bad(list(check_configuration(settings_of(), role))) == []
    assert bad(list(check_configuration(Settings(), Role.SERVE))) == []


@pytest.mark.parametrize(
    ("changes", "role", "level", "part"),
    [
        ({"listen": "0.0.0.0:8787"}, Role.PROXY, Severity.ERROR, "http.api_keys is not set"),
        ({"node": {"listen": "0.0.0.0:8788"}}, Role.NODE, Severity.ERROR, "node.token"),
        ({"listen": "0.0.0.0:8787", "http": {"open": True}}, Role.PROXY, Severity.WARNING, "http.open"),
        ({"zookeeper": {"hosts": ""}}, Role.NODE, Severity.ERROR, "zookeeper.hosts is not set"),
        ({"kafka": {"min_insync_replicas": 4}}, Role.NODE, Severity.ERROR, "min_insync_replicas = 4"),
        ({"kafka": {"min_insync_replicas": 1}}, Role.NODE, Severity.WARNING, "only one broker"),
        ({"kafka": {"replication_factor": 1, "min_insync_replicas": 1}}, Role.NODE, Severity.WARNING, "lost"),
        ({"kafka": {"transaction_timeout_ms": 40_000}}, Role.NODE, Severity.WARNING, "stuck_after_s"),
        ({"zookeeper": {"acl": "open"}}, Role.PROXY, Severity.WARNING, "acl"),
        ({"kafka": {"bootstrap": ""}, "bus": "kafka"}, Role.SERVE, Severity.ERROR, "kafka.bootstrap"),
    ],
)
def test_bad_settings_are_found(changes: dict[str, Any], role: Role, level: Severity, part: str) -> None:
    one(list(check_configuration(settings_of(**changes), role)), level, part)


def test_a_settings_file_with_secrets_is_for_its_group_alone(tmp_path: Path) -> None:
    file = tmp_path / "duemq.toml"
    file.write_text(
        'listen = "127.0.0.1:1"\n[http]\nopen = false\napi_keys = ["a-secret-key"]\n[login]\nclient_secret = ""\n'
    )
    file.chmod(0o644)
    ((level, text),) = bad(list(check_settings_file(file)))
    assert (
        level is Severity.WARNING and "http.api_keys" in text and "client_secret" not in text and "a-secret" not in text
    )
    file.chmod(0o640)
    assert bad(list(check_settings_file(file))) == []
    file.write_text('[http]\nopen = false\n[destinations.shop]\nurl = "https://x"\n')
    file.chmod(0o644)
    assert bad(list(check_settings_file(file))) == []


def test_a_file_of_credentials_that_the_settings_name_is_for_its_group_alone(tmp_path: Path) -> None:
    file, credentials = tmp_path / "duemq.toml", tmp_path / "shop.toml"
    file.write_text(f'[destinations.shop]\nurl = "https://x"\ncredentials_file = "{credentials}"\n')
    credentials.write_text('token = "a-secret"\n')
    credentials.chmod(0o644)
    one(list(check_settings_file(file)), Severity.WARNING, "destination shop")
    credentials.chmod(0o640)
    assert bad(list(check_settings_file(file))) == []


def test_a_relay_needs_brokers_and_has_no_api_to_protect() -> None:
    found = bad(list(check_configuration(Settings(), Role.RELAY)))
    assert [text for level, text in found if level is Severity.ERROR] == ["kafka.bootstrap is not set"]
    # It serves metrics and probes alone, whatever `listen` and `http.open` say of proxies.
    relay = settings_of(listen="0.0.0.0:8787", http={"open": True}, relay={"listen": "0.0.0.0:8789"})
    assert bad(list(check_configuration(relay, Role.RELAY))) == []


def test_the_role_follows_from_the_settings() -> None:
    assert (role_of(Settings()), role_of(settings_of())) == (Role.SERVE, Role.NODE)


# --- folder and disk ----------------------------------------------------------------------------------------------

MARKS = Watermarks()
_GIB = 1 << 30


def folder_findings(path: Path) -> list[Finding]:
    return [finding for finding in check_folder(path, MARKS) if finding.subject == "data folder"]


def test_folders_are_told_apart(tmp_path: Path) -> None:
    assert bad(folder_findings(tmp_path / "new")) == []
    Folder.open(tmp_path / "good").close()
    assert bad(folder_findings(tmp_path / "good")) == []
    (tmp_path / "good").chmod(0o755)
    one(folder_findings(tmp_path / "good"), Severity.WARNING, "open to all users")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    one(folder_findings(tmp_path / "other"), Severity.ERROR, "not duemq's")
    (tmp_path / "other" / "backup.json").touch()
    one(folder_findings(tmp_path / "other"), Severity.ERROR, "a backup")
    (tmp_path / "good").chmod(0o700)
    meta = tmp_path / "good" / "duemq.json"
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 99'))
    one(folder_findings(tmp_path / "good"), Severity.ERROR, "99")


def test_a_folder_in_use_needs_no_lock(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path / "data")
    try:
        (finding,) = folder_findings(tmp_path / "data")
        assert finding.level is Severity.OK and f"process {os.getpid()}" in finding.detail
    finally:
        folder.close()


def test_each_worker_has_a_folder(tmp_path: Path) -> None:
    for number in range(2):
        Folder.open(tmp_path / f"worker-{number}").close()
    assert [finding.level for finding in folder_findings(tmp_path)] == [Severity.OK, Severity.OK]


@pytest.mark.parametrize(
    ("used", "free", "level"),
    [(50, 50, Severity.OK), (80, 20, Severity.WARNING), (95, 5, Severity.ERROR)],
)
def test_disks_are_judged_by_their_marks(used: int, free: int, level: Severity) -> None:
    assert judge_disk(Path("/d"), DiskUse(used * _GIB, free * _GIB), MARKS).level is level
    assert judge_disk(Path("/d"), DiskUse(1, 1), MARKS).level is Severity.ERROR, "there must be some bytes free"


def test_the_nearest_mount_says_the_file_system() -> None:
    mounts = "d / ext4 rw 0 0\ns /srv nfs4 rw 0 0\nt /srv/local\\040disk xfs rw 0 0\n"
    assert file_system_of(Path("/srv/data"), mounts) == "nfs4"
    assert file_system_of(Path("/srv/local disk/data"), mounts) == "xfs"
    assert file_system_of(Path("/srvx"), mounts) == "ext4"
    assert file_system_of(Path("/x"), "") == ""


# --- brokers ------------------------------------------------------------------------------------------------------


@dataclass
class FakeTopic:
    partitions: int = 1
    copies: int = 3
    trouble: Mapping[int, str] = field(default_factory=dict)


@dataclass
class FakeBrokers:
    """A good cluster with two shards, until it is changed."""

    count: int = 3
    v2: bool = True
    offset_ms: float | Exception | None = 1.0
    longest_ms: int | None = 60_000
    misfits: dict[str, str] = field(default_factory=dict)
    topics: dict[str, FakeTopic] = field(
        default_factory=lambda: {
            BUFFER: FakeTopic(2),
            LEDGER: FakeTopic(2),
            ADMIN: FakeTopic(1),
            "duemq.dead": FakeTopic(),
        }
    )

    def brokers(self) -> int:
        return self.count

    async def has_transactions_v2(self) -> bool:
        return self.v2

    async def max_transaction_ms(self) -> int | None:
        return self.longest_ms

    async def topic(self, name: str) -> FakeTopic | None:
        return self.topics.get(name)

    async def misfit(self, name: str, *, expires: bool) -> str | None:
        assert expires == (name == BUFFER)
        return self.misfits.get(name)

    async def clock_offset_ms(self) -> float | None:
        if isinstance(self.offset_ms, Exception):
            raise self.offset_ms
        return self.offset_ms


def broker_findings(brokers: FakeBrokers, shards: int | None = 2, **changes: Any) -> list[Finding]:
    async def collect() -> list[Finding]:
        settings = settings_of(topics={"dead_letter": "duemq.dead"} | changes)
        return [finding async for finding in check_brokers(brokers, settings, shards)]

    return asyncio.run(collect())


def test_a_good_cluster_is_ok() -> None:
    assert bad(broker_findings(FakeBrokers())) == []
    assert bad(broker_findings(FakeBrokers(offset_ms=None, longest_ms=None), None)) == []


@pytest.mark.parametrize(
    ("brokers", "level", "part"),
    [
        (FakeBrokers(count=2), Severity.ERROR, "2 brokers are known"),
        (FakeBrokers(v2=False), Severity.WARNING, "KIP-890"),
        (FakeBrokers(longest_ms=900_000), Severity.WARNING, "for up to 900 s"),
        (FakeBrokers(offset_ms=-300.0), Severity.WARNING, "this clock is +300 ms"),
        (FakeBrokers(offset_ms=600.0), Severity.ERROR, "this clock is -600 ms"),
        (FakeBrokers(offset_ms=LogFailed("no answer")), Severity.WARNING, "no answer"),
        (FakeBrokers(misfits={LEDGER: "retention.ms is 1"}), Severity.ERROR, "retention.ms is 1"),
    ],
    ids=lambda value: "",
)
def test_bad_clusters_are_found(brokers: FakeBrokers, level: Severity, part: str) -> None:
    one(broker_findings(brokers), level, part)


def test_bad_topics_are_found() -> None:
    brokers = FakeBrokers()
    brokers.topics[BUFFER] = FakeTopic(4)
    one(broker_findings(brokers), Severity.ERROR, "4 partitions")
    brokers.topics[BUFFER] = FakeTopic(2, trouble={1: "no_leader"})
    one(broker_findings(brokers), Severity.ERROR, "partition 1: no_leader")
    del brokers.topics[BUFFER]
    one(broker_findings(brokers), Severity.WARNING, f"{BUFFER} does not exist")
    brokers = FakeBrokers()
    del brokers.topics["duemq.dead"]
    assert bad(broker_findings(brokers)) == []
    one(broker_findings(brokers, partitions=0), Severity.ERROR, "dead-letter topic")


# --- ZooKeeper ----------------------------------------------------------------------------------------------------

IDENTITY = ClusterIdentity("c1", 2, b"secret")


def test_zookeeper_is_judged() -> None:
    assert bad(list(judge_zookeeper(settings_of(), IDENTITY, ["a"]))) == []
    assert bad(list(judge_zookeeper(settings_of(), None, None))) == []
    one(list(judge_zookeeper(settings_of(), IDENTITY, [])), Severity.ERROR, "no node")
    one(list(judge_zookeeper(settings_of(shards=3), IDENTITY, ["a"])), Severity.ERROR, "made with 2")
    one(list(judge_zookeeper(settings_of(zookeeper={"hosts": "a:1"}), IDENTITY, ["a"])), Severity.WARNING, "names 1")
    hosts = "a:1,b:1,c:1,d:1"
    one(list(judge_zookeeper(settings_of(zookeeper={"hosts": hosts}), IDENTITY, ["a"])), Severity.WARNING, "4 servers")


# --- certificates -------------------------------------------------------------------------------------------------


def test_certificates_are_judged_by_their_end_and_their_key(tmp_path: Path) -> None:
    ca, now = trustme.CA(), datetime.now(UTC)
    soon, other = ca.issue_cert("x", not_after=now + timedelta(days=20)), ca.issue_cert("y")
    names = {name: str(tmp_path / name) for name in ("ca", "cert", "key", "other")}
    ca.cert_pem.write_to_path(names["ca"])
    soon.cert_chain_pems[0].write_to_path(names["cert"])
    soon.private_key_pem.write_to_path(names["key"])
    other.private_key_pem.write_to_path(names["other"])
    for name in ("key", "other"):
        Path(names[name]).chmod(0o600)

    def findings(later: timedelta = timedelta(), **files: Any) -> list[Finding]:
        return list(check_certificates(settings_of(kafka=files), now + later))

    good: dict[str, Any] = {"ca_file": names["ca"], "cert_file": names["cert"], "key_file": names["key"]}
    assert {file.setting for file in files_of(settings_of(kafka=good))} == {f"kafka.{name}" for name in good}
    one(findings(**good), Severity.WARNING, "valid until")
    one(findings(timedelta(days=21), **good), Severity.ERROR, "ended on")
    assert bad(findings(ca_file=names["ca"])) == []
    assert "do not fit" in bad(findings(**good | {"key_file": names["other"]}))[-1][1]
    one(findings(ca_file=str(tmp_path / "gone")), Severity.ERROR, "No such file")
    one(findings(ca_file=names["key"]), Severity.ERROR, "no certificates")
    Path(names["key"]).chmod(0o644)
    one(findings(key_file=names["key"]), Severity.WARNING, "every user may read")
    one(findings(timedelta(days=-365 * 40), cert_file=names["cert"]), Severity.ERROR, "valid from")


# --- the machine and the server -----------------------------------------------------------------------------------

UNIT = {"LoadState": "loaded", "Type": "notify", "WatchdogUSec": "30s", "Restart": "on-failure", "NRestarts": "0"}


def test_units_are_judged() -> None:
    def judged(fields: Mapping[str, str] | None) -> list[Finding]:
        return list(judge_unit("duemq@serve.service", fields))

    assert bad(judged(UNIT)) == bad(judged(None)) == []
    assert bad(judged({"LoadState": "not-found"})) == []
    one(judged(UNIT | {"Type": "simple"}), Severity.WARNING, "not notify")
    one(judged(UNIT | {"WatchdogUSec": "0"}), Severity.WARNING, "WatchdogSec")
    one(judged(UNIT | {"Restart": "no"}), Severity.WARNING, "Restart")
    one(judged(UNIT | {"NRestarts": "12"}), Severity.WARNING, "12 times")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bad(list(check_versions())) == []
    monkeypatch.setattr("duemq.cli.doctor.machine._server_packages", lambda: ["aiokafka", "no-such-package"])
    one(list(check_versions()), Severity.ERROR, "no-such-package")


def test_the_server_is_judged_by_its_probes() -> None:
    live, ready = httpx.Response(200, json={"status": "ok"}), httpx.Response(200, json={"status": "ready"})
    down = httpx.Response(503, json={"detail": "shard 0 has been stuck for 61 s"})
    page = 'duemq_build_info{version="0.0.1"} 1.0\n'
    none, other = httpx.Response(200, text=""), httpx.Response(200, text=page)
    assert bad(list(judge_server("x:1", live, ready, none))) == []
    one(list(judge_server("x:1", live, ready, other)), Severity.WARNING, "runs duemq 0.0.1")
    one(list(judge_server("x:1", down, ready, none)), Severity.ERROR, "stuck")
    one(list(judge_server("x:1", live, down, none)), Severity.ERROR, "not ready")
    closed = list(judge_server("x:1", live, ready, httpx.Response(401)))
    assert bad(closed) == [] and "DUEMQ_API_KEY" in closed[-1].detail
    part = httpx.Response(200, json={"status": "ready", "shards": {"3": {"detail": "it failed"}}})
    one(list(judge_server("x:1", live, part, none)), Severity.WARNING, "shards 3: it failed")
    figures = 'duemq_relay_troubled{destination="shop"} 1.0\nduemq_relay_troubled{destination="mail"} 0.0\n'
    one(
        list(judge_server("x:1", live, ready, httpx.Response(200, text=figures))),
        Severity.WARNING,
        "shop takes no messages",
    )


def test_a_check_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("a bug")

    monkeypatch.setattr("duemq.cli.doctor.examination.check_open_files", broken)

    async def collect() -> list[Finding]:
        settings = Settings(data=tmp_path, listen="127.0.0.1:1")
        return [finding async for finding in examine(settings, Role.SERVE)]

    findings = asyncio.run(collect())
    assert any("a bug" in finding.detail and finding.level is Severity.ERROR for finding in findings)
    assert {"configuration", "versions", "data folder", "disk", "systemd", "server"} <= {
        each.subject for each in findings
    }
