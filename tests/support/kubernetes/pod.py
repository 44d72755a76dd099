"""A pod, as a kubelet runs it: one container, as a process of this machine with a loopback address.

The process has the environment, the arguments, the user and the settings of the manifest. It writes its volume and
nothing else of the disk. Paths of mounts are folders here, and 0.0.0.0 is the address of the pod.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from duemq.dev.servers.process import Process
from tests.support.kubernetes.image import Image

PATIENCE = 10  # times as many failures as in a manifest: machines that run tests are shared
_MOUNT = (
    'mount --bind "$0" /etc/hosts; [ -z "$1" ] || mount --bind "$1" "$1"; mount -o remount,bind,ro / && cd / && '
    'shift && exec "$@"'
)
# By it the process finds an interpreter that only root may look for; it writes nothing by it.
_READ = "-all,+dac_read_search"
_VARIABLE = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True)
class Surroundings:
    """What a pod has of its namespace. `hosts`: the file with the names that can be looked up."""

    config_maps: Mapping[str, Mapping[str, str]]
    secrets: Mapping[str, Mapping[str, str]]
    hosts: Path


class Pod:
    """`folder`: its own; `volume`: what outlives it, or None.

    `ready`: as its readiness probe says. `restarts` of its container. `exit_code` of a pod that was deleted.
    """

    def __init__(
        self,
        name: str,
        template: Mapping[str, Any],
        address: str,
        folder: Path,
        volume: Path | None,
        about: Surroundings,
    ) -> None:
        self.name, self.template, self.address = name, template, address
        self.labels: Mapping[str, str] = template["metadata"]["labels"]
        self.ready, self.restarts = False, -1
        self.exit_code: int | None = None
        self._spec = template["spec"]
        (self._container,) = self._spec["containers"]
        self._hosts, self._volume, self._paths = about.hosts, volume, dict[str, str]()
        self._mount(folder, about)
        image = Image.read()
        of_image = {name: self._here(value) for name, value in image.environment.items()}
        self.environment = of_image | self._variables(about) | {"PATH": _path(), "NO_COLOR": "1"}
        started = ["unshare", "--mount", "sh", "-c", _MOUNT, str(self._hosts), str(volume or "")]
        command = [*image.entrypoint, *self._container["args"]]
        self.process = Process(
            name, [*started, *self._as_user(), *map(self._here, command)], folder / "log", environment=self.environment
        )
        self._ends = Event()
        self._thread = Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """As the out-of-memory killer does: the container is started again."""
        self.process.kill()

    def delete(self) -> None:
        """SIGTERM and the grace, as `kubectl delete pod` does. Raises LocalError if it takes longer."""
        self._leave()
        self.exit_code = self.process.stop(self._spec["terminationGracePeriodSeconds"])

    def close(self) -> None:
        self._leave()
        self.process.kill()

    def run(self, *command: str, within_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` and probes do. Raises subprocess.TimeoutExpired."""
        enter = ["nsenter", f"--target={self.process.pid}", "--mount", *self._as_user()]
        return subprocess.run(
            [*enter, *map(self._here, command)], env=self.environment, capture_output=True, text=True, timeout=within_s
        )

    def _leave(self) -> None:
        """No probe is asked any more, nothing is sent to it, and nothing starts it again."""
        self.ready = False
        self._ends.set()
        self._thread.join()

    # --- its life -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._ends.is_set():
            self.restarts += 1
            self.process.start()
            if self._starts():
                self._watch()
            self.ready = False
            if not self._ends.wait(1):
                self.process.kill()

    def _starts(self) -> bool:
        probe = self._container["startupProbe"]
        for _ in range(probe["failureThreshold"] * PATIENCE):
            if self._ends.wait(probe["periodSeconds"] / 4) or not self.process.running:
                return False
            if self._passes(probe):
                return True
        return False

    def _watch(self) -> None:
        """Until it is deleted, dies, or its liveness probe fails too often."""
        failures = dict.fromkeys(("readinessProbe", "livenessProbe"), 0)
        due = dict.fromkeys(failures, time.monotonic())
        while self.process.running:
            for kind in failures:
                probe = self._container[kind]
                if time.monotonic() < due[kind]:
                    continue
                passes = self._passes(probe)
                due[kind] = time.monotonic() + probe["periodSeconds"] / 2
                failures[kind] = 0 if passes else failures[kind] + 1
                if kind == "readinessProbe" and (passes or failures[kind] >= probe["failureThreshold"]):
                    self.ready = passes
                elif failures["livenessProbe"] >= probe["failureThreshold"] * PATIENCE:
                    return
            if self._ends.wait(0.2):
                return

    def _passes(self, probe: Mapping[str, Any]) -> bool:
        try:
            return self.run(*probe["exec"]["command"], within_s=probe["timeoutSeconds"]).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    # --- what it is given -----------------------------------------------------------------------------------------

    def _mount(self, folder: Path, about: Surroundings) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        volumes = {volume["name"]: volume for volume in self._spec["volumes"]}
        for mount in self._container["volumeMounts"]:
            if mount["name"] not in volumes:  # a claim
                assert self._volume is not None
                self._paths[mount["mountPath"]] = str(self._volume)
                continue
            where = folder / mount["name"]
            where.mkdir()
            for name, text in about.config_maps[volumes[mount["name"]]["configMap"]["name"]].items():
                (where / name).write_text(text)
            self._paths[mount["mountPath"]] = str(where)
        if self._volume is not None and not self._volume.exists():
            self._volume.mkdir(parents=True)
            (self._volume / "lost+found").mkdir(mode=0o700)  # as ext4 has it
            os.chown(self._volume, 0, self._spec["securityContext"]["fsGroup"])
            self._volume.chmod(0o2770)

    def _variables(self, about: Surroundings) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in self._container.get("envFrom", []):
            found |= about.secrets[source["secretRef"]["name"]]
        for variable in self._container["env"]:
            if "valueFrom" in variable:
                assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                found[variable["name"]] = self.name
            else:
                value = _VARIABLE.sub(lambda match: found[match[1]], variable["value"])
                found[variable["name"]] = self._here(value)
        return found

    def _here(self, text: str) -> str:
        for path, folder in self._paths.items():
            if text == path or text.startswith(f"{path}/"):
                return folder + text.removeprefix(path)
        return text.replace("0.0.0.0", self.address)

    def _as_user(self) -> Sequence[str]:
        who, container = self._spec["securityContext"], self._container["securityContext"]
        assert container["readOnlyRootFilesystem"] and container["capabilities"] == {"drop": ["ALL"]}
        assert who["runAsNonRoot"] and not container["allowPrivilegeEscalation"]
        return (
            "setpriv", f"--reuid={who['runAsUser']}", f"--regid={who['runAsGroup']}", f"--groups={who['fsGroup']}",
            "--no-new-privs", f"--inh-caps={_READ}", f"--ambient-caps={_READ}",
        )  # fmt: skip


def _path() -> str:
    return f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
