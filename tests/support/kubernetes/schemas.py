"""Manifests held against the schemas of Kubernetes and of the Prometheus operator, in which no unknown field passes.

`schemas/` has them without their descriptions: the definitions that our kinds need, from the OpenAPI documents of the
oldest Kubernetes that the chart allows and of a late one, and version v0.93.0 of the operator's ServiceMonitor.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

_FOLDER = Path(__file__).parent / "schemas"
_DEFINITIONS = {
    "v1/ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1/Secret": "io.k8s.api.core.v1.Secret",
    "v1/Service": "io.k8s.api.core.v1.Service",
    "apps/v1/StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "apps/v1/Deployment": "io.k8s.api.apps.v1.Deployment",
    "policy/v1/PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}
VERSIONS = ("1.25", "1.37")


def problems(manifest: dict[str, Any], version: str) -> list[str]:
    """What a Kubernetes of this version refuses of it."""
    found = _validator(f"{manifest['apiVersion']}/{manifest['kind']}", version).iter_errors(manifest)
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in found]


@cache
def _validator(kind: str, version: str) -> Any:
    if kind == "monitoring.coreos.com/v1/ServiceMonitor":
        return jsonschema_rs.validator_for(_read("service-monitor"))
    schema = _read(f"kubernetes-{version}")
    return jsonschema_rs.validator_for(schema | {"$ref": f"#/$defs/{_DEFINITIONS[kind]}"})


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return document
