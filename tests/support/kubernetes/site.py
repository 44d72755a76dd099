"""A Kubernetes without one: it applies manifests as its controllers do, and its pods are processes of this machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.process import wait_for
from tests.support.kubernetes.helm import Manifest
from tests.support.kubernetes.pod import Pod, Surroundings

_READY_WITHIN_S = 300.0


class Site:
    """`pods` by the name of their StatefulSet or Deployment, in the order of their names. `ended`: those that were told
    to end, oldest first. A context manager: left, all processes are gone."""

    def __init__(self, folder: Path, namespace: str = "mail") -> None:
        self._folder, self._namespace = folder, namespace
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._numbers, self._net = count(1), f"127.{random.randrange(16, 250)}.{random.randrange(250)}"
        self._objects: dict[tuple[str, str], Manifest] = {}
        self.pods: dict[str, list[Pod]] = {}
        self.ended: list[Pod] = []
        self._made: list[Pod] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self._made:
            pod.close()

    def apply(self, manifests: Iterable[Manifest]) -> None:
        """As `helm upgrade --install --wait` does: pods of an old template give way, of each kind one at a time."""
        for manifest in manifests:
            self._objects[manifest["kind"], manifest["metadata"]["name"]] = manifest
        workloads = [one for (kind, _), one in self._objects.items() if kind in ("StatefulSet", "Deployment")]
        for workload in workloads:
            if workload["metadata"]["name"] not in self.pods:
                self._start(workload)
        self._wait(self._all())
        rolls = {"StatefulSet": self._roll_stateful_set, "Deployment": self._roll_deployment}
        with ThreadPoolExecutor(len(workloads)) as controllers:
            rolling = [controllers.submit(rolls[workload["kind"]], workload) for workload in workloads]
        for each in rolling:
            each.result()

    def endpoints(self, service: str) -> list[str]:
        """HOST:PORT of the pods that are ready, as a Service finds them."""
        spec = self._objects["Service", service]["spec"]
        (port,) = spec["ports"]
        found = []
        for pod in self._all():
            if pod.ready and spec["selector"].items() <= pod.labels.items():
                ports = pod.template["spec"]["containers"][0]["ports"]
                found += [f"{pod.address}:{p['containerPort']}" for p in ports if p["name"] == port["targetPort"]]
        return found

    def _start(self, workload: Manifest) -> None:
        name = workload["metadata"]["name"]
        self.pods[name] = []
        for number in range(workload["spec"]["replicas"]):
            self.pods[name].append(self._new(workload, number))

    def _roll_stateful_set(self, workload: Manifest) -> None:
        assert workload["spec"]["updateStrategy"]["type"] == "RollingUpdate"
        pods = self.pods[workload["metadata"]["name"]]
        for number, pod in reversed(list(enumerate(pods))):
            if pod.template != workload["spec"]["template"]:
                self._end(pod)
                pods[number] = self._new(workload, number)
                self._wait([pods[number]])

    def _roll_deployment(self, workload: Manifest) -> None:
        assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        pods = self.pods[workload["metadata"]["name"]]
        for number, pod in enumerate(list(pods)):
            if pod.template != workload["spec"]["template"]:
                new = self._new(workload, number)
                self._wait([new])
                pods[number] = new
                self._end(pod)

    def _new(self, workload: Manifest, number: int) -> Pod:
        name, serial = workload["metadata"]["name"], next(self._numbers)
        address = f"{self._net}.{serial}"
        claims = workload["spec"].get("volumeClaimTemplates", ())
        pod_name = f"{name}-{number}" if claims else f"{name}-{serial:05x}"
        volume = self._folder / "claims" / pod_name if claims else None
        service = self._objects["Service", workload["spec"].get("serviceName", name)]
        if service["spec"].get("publishNotReadyAddresses"):
            self._tell(f"{pod_name}.{service['metadata']['name']}.{self._namespace}.svc", address)
        about = Surroundings(self._data("ConfigMap", "data"), self._data("Secret", "stringData"), self._hosts)
        pod = Pod(pod_name, workload["spec"]["template"], address, self._folder / f"pod-{serial}", volume, about)
        self._made.append(pod)
        return pod

    def _end(self, pod: Pod) -> None:
        self.ended.append(pod)
        pod.delete()

    def _wait(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            try:
                wait_for(partial(getattr, pod, "ready"), f"{pod.name} to be ready", _READY_WITHIN_S)
            except LocalError as error:
                raise LocalError(f"{error}:\n{pod.process.last_words()}") from None

    def _tell(self, name: str, address: str) -> None:
        """What a name means from now on. The file is changed in its place: pods have it mounted."""
        lines = [line for line in self._hosts.read_text().splitlines() if not line.endswith(f" {name}")]
        with self._hosts.open("r+") as file:
            file.write("".join(f"{line}\n" for line in (*lines, f"{address} {name}")))
            file.truncate()

    def _data(self, kind: str, field: str) -> Mapping[str, Mapping[str, Any]]:
        return {name: one[field] for (of, name), one in self._objects.items() if of == kind}

    def _all(self) -> list[Pod]:
        return [pod for pods in self.pods.values() for pod in pods]
