"""The Helm chart: its manifests are valid, fit together, and duemq reads their settings."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from importlib.metadata import version as version_of
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from duemq.cli.settings.settings import Settings
from tests.support.kubernetes.helm import CHART, Helm, HelmRefuses, Manifest
from tests.support.kubernetes.schemas import VERSIONS, problems

pytestmark = pytest.mark.xdist_group("helm")

LEAST: dict[str, Any] = {
    "config": {"kafka": {"bootstrap": ["k:9092"]}, "zookeeper": {"hosts": ["z:2181"]}},
    "secrets": {"node.token": "a-long-random-text"},
}
SINGLE: dict[str, Any] = {"mode": "single"}
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example.com/duemq", "tag": "1"},
    "config": LEAST["config"]
    | {
        "log_level": "debug",
        "http": {"shutdown_grace_s": 7.5},
        "limits": {"max_payload_bytes": 33554432},
        "login": {"scopes": 'openid "quoted" \\ <ü>'},
        "node": {"cert_file": "/tls/tls.crt", "key_file": "/tls/tls.key"},
        "destinations": {
            "billing": {
                "url": "https://example.com/a?b=1&c=<2>",
                "topics": ["invoices"],
                "concurrency": 1000,
            },
        },
    },
    "existingSecret": "mine",
    "volumes": [{"name": "tls", "secret": {"secretName": "duemq-tls"}}],
    "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    "node": {
        "storage": {"size": "1Ti", "storageClassName": "fast"},
        "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
        "pod": {"nodeSelector": {"disk": "nvme"}, "tolerations": [{"operator": "Exists"}], "priorityClassName": "high"},
        "metrics": {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}},
    },
    "proxy": {"metrics": {"authorization": {"credentials": {"name": "prometheus", "key": "key"}}}},
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.com/internal": "true"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
ALL = pytest.mark.parametrize("values", [LEAST, SINGLE, FULL], ids=["least", "single", "full"])


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    return of_kind(manifests, "StatefulSet", "Deployment")


def container(workload: Manifest) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


@ALL
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_manifest(helm: Helm, values: Mapping[str, Any], version: str) -> None:
    helm.lint(values)
    manifests = helm.render(values)
    assert {str(one["metadata"]["name"]): found for one in manifests if (found := problems(one, version))} == {}
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    assert {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in manifests} == {version_of("duemq")}


def test_a_field_that_kubernetes_does_not_know_is_found(helm: Helm) -> None:
    wrong = helm.render(LEAST | {"node": {"pod": {"nodeSelektor": {}}}})
    assert [found for one in wrong for found in problems(one, "1.37")] != []


@ALL
def test_what_selects_pods_selects_those_of_one_workload(helm: Helm, values: Mapping[str, Any]) -> None:
    manifests = helm.render(values)
    pods = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in workloads(manifests)}
    services = {one["metadata"]["name"]: one["metadata"]["labels"] for one in of_kind(manifests, "Service")}
    assert pods.keys() == services.keys()

    def selected(one: Manifest, among: Mapping[str, Mapping[str, str]]) -> list[str]:
        by = one["spec"]["selector"]
        wanted = by if one["kind"] == "Service" else by["matchLabels"]
        return [name for name, labels in among.items() if wanted.items() <= labels.items()]

    for one in of_kind(manifests, "Service", "StatefulSet", "Deployment", "PodDisruptionBudget"):
        assert selected(one, pods) == [one["metadata"]["name"]]
    for one in of_kind(manifests, "ServiceMonitor"):
        assert selected(one, services) == [one["metadata"]["name"]]
        assert one["spec"]["jobLabel"] in services[one["metadata"]["name"]], "job=duemq of the alert rules"
    assert len(of_kind(manifests, "PodDisruptionBudget")) == len(pods)


@ALL
def test_duemq_reads_the_settings_of_each_pod(
    helm: Helm, values: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = helm.render(values)
    (config_map,) = of_kind(manifests, "ConfigMap")
    file = tmp_path / "duemq.toml"
    file.write_text(config_map["data"]["duemq.toml"])
    wanted = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    for section, given in values.get("config", {}).items():
        wanted[section] = {**wanted.get(section, {}), **given} if isinstance(given, Mapping) else given
    assert tomllib.loads(file.read_text()) == wanted
    for name in list(os.environ):
        if name.startswith("DUEMQ_"):
            monkeypatch.delenv(name)
    for secret in of_kind(manifests, "Secret"):
        for name, value in secret["stringData"].items():
            monkeypatch.setenv(name, value)
    for workload in workloads(manifests):
        with monkeypatch.context() as environment:
            for variable in container(workload)["env"]:
                environment.setenv(variable["name"], variable.get("value", "duemq-node-0"))
            settings = Settings.load(file)
        assert settings.shards == 4 and settings.http.access == "keys"
        assert settings.node.token == values.get("secrets", {}).get("node.token", "")
        assert settings.destinations.keys() == values.get("config", {}).get("destinations", {}).keys()


@ALL
def test_pods_are_restricted(helm: Helm, values: Mapping[str, Any]) -> None:
    """As the profile `restricted` of the Pod Security Standards asks for, and on a disk that they cannot write."""
    for workload in workloads(helm.render(values)):
        spec = workload["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(workload)["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert spec["automountServiceAccountToken"] is False
        assert not any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC"))


def test_a_pod_has_more_time_to_end_than_duemq_takes(helm: Helm) -> None:
    values = LEAST | {"config": LEAST["config"] | {"http": {"shutdown_grace_s": 100.5}}, "proxy": {"drainSeconds": 200}}
    graces = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for one in workloads(helm.render(values))
    }
    assert graces == {"duemq-node": 131, "duemq": 331, "duemq-relay": 131}


def test_a_change_of_the_settings_restarts_the_pods_and_nothing_else_does(helm: Helm) -> None:
    first, again = helm.render(LEAST), helm.render(LEAST)
    assert first == again
    changed = helm.render(LEAST | {"config": LEAST["config"] | {"log_level": "debug"}})
    rotated = helm.render(LEAST | {"secrets": {"node.token": "another-random-text"}})
    scaled = helm.render(LEAST | {"proxy": {"replicas": 3}})

    def templates(manifests: list[Manifest]) -> list[Any]:
        return [one["spec"]["template"] for one in workloads(manifests)]

    assert all(a != b for a, b in zip(templates(first), templates(changed), strict=True))
    assert all(a != b for a, b in zip(templates(first), templates(rotated), strict=True))
    assert templates(first) == templates(scaled)


def test_each_block_of_values_in_the_page_is_taken(helm: Helm) -> None:
    blocks = re.findall(
        r"(?ms)^( *)```yaml\n(.*?)^\1```$", (CHART.parents[2] / "docs" / "operate" / "kubernetes.md").read_text()
    )
    assert len(blocks) == 4
    for _, block in blocks:
        values = yaml.safe_load(dedent(block))
        if values.get("mode") != "single":
            secrets = {} if "existingSecret" in values else LEAST["secrets"]
            values |= {"config": LEAST["config"] | values.get("config", {}), "secrets": secrets}
        assert [found for one in helm.render(values) for found in problems(one, "1.37")] == []


def test_two_releases_do_not_meet(helm: Helm) -> None:
    one, other = ({(m["kind"], m["metadata"]["name"]) for m in helm.render(LEAST, name)} for name in ("duemq", "b"))
    assert not one & other
    assert ("Service", "b-duemq") in other


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "set config.kafka.bootstrap and config.zookeeper.hosts, or mode=single"),
        ({"config": LEAST["config"]}, 'set secrets."node.token"'),
        (LEAST | {"existingSecret": "mine"}, "set secrets or existingSecret, not both"),
        (LEAST | {"proxies": {"replicas": 2}}, "proxies"),
        (LEAST | {"node": {"replicas": 0}}, "replicas"),
        (SINGLE | {"serve": {"replicas": 2}}, "replicas"),
        (SINGLE | {"config": {"http": {"api_keys": "a-key-for-all"}}}, "api_keys"),
        (SINGLE | {"config": {"listen": "127.0.0.1:1"}}, "listen"),
        (SINGLE | {"config": {"http": {"drain_s": 3}}}, "drain_s"),
        (SINGLE | {"serve": {"pod": {"containers": []}}}, "containers"),
        (SINGLE | {"secrets": {"node_token!": "x"}}, "node_token!"),
    ],
)
def test_wrong_values_are_refused(helm: Helm, values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(HelmRefuses, match=said.replace(".", r"\.")):
        helm.render(values)


def test_no_secret_passes_into_the_config_map(helm: Helm) -> None:
    secrets = [
        (section, key)
        for section, field in Settings.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
        if re.search("password|token|secret|api_keys", key)
    ]
    assert len(secrets) >= 6
    for section, key in secrets:
        with pytest.raises(HelmRefuses, match=f"/config/{section}/{key}"):
            helm.render(SINGLE | {"config": {section: {key: "x"}}})


@pytest.mark.parametrize(
    ("values", "keeper"), [(LEAST, "duemq-node-0"), (SINGLE, "duemq-0")], ids=["cluster", "single"]
)
def test_the_notes_name_what_is_there(helm: Helm, values: Mapping[str, Any], keeper: str, tmp_path: Path) -> None:
    notes, names = helm.notes(values, tmp_path), {one["metadata"]["name"] for one in workloads(helm.render(values))}
    assert f"kubectl --namespace mail exec {keeper} -- duemq keys create ops --role admin" in notes
    assert keeper.removesuffix("-0") in names and "rollout status" in notes
    assert "http://duemq.mail.svc:8787" in notes
