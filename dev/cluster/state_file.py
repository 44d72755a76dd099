"""The state of a local cluster, stored as `cluster.json` in its folder for commands after the one that started it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from duemq.dev.cluster.cluster import LocalCluster, Ports
from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.process import ProcessIdentity

_FILE = "cluster.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`settings`: the settings with which every node and proxy was started. `processes`: the started processes."""

    ports: Ports
    settings: dict[str, str]
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: LocalCluster, settings: dict[str, str]) -> ClusterState:
        started = {name: process.identity for name, process in cluster.processes.items() if process.running}
        return cls(cluster.ports, settings, {name: each for name, each in started.items() if each is not None})

    @classmethod
    def read(cls, folder: Path) -> ClusterState | None:
        """The state in a folder; None if no cluster was started there. Raises LocalError if the file is not ours."""
        try:
            document = json.loads((folder / _FILE).read_bytes())
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']}")
            return cls._of_json(document)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LocalError(f"{folder / _FILE} cannot be read: {error}") from error

    @classmethod
    def _of_json(cls, document: dict[str, Any]) -> ClusterState:
        return cls(
            Ports(**{kind: tuple(ports) for kind, ports in document["ports"].items()}),
            document["settings"],
            {name: ProcessIdentity(**identity) for name, identity in document["processes"].items()},
        )

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{_FILE}.new"
        new.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n")
        new.replace(folder / _FILE)

    def cluster(self, folder: Path, **further: Any) -> LocalCluster:
        """The same cluster, attached to those of its processes that are still running."""
        ports = self.ports
        cluster = LocalCluster(
            folder,
            brokers=len(ports.kafka),
            zookeepers=len(ports.zookeeper),
            nodes=len(ports.nodes),
            proxies=len(ports.proxies),
            settings=self.settings,
            ports=ports,
            **further,
        )
        for name, process in cluster.processes.items():
            if name in self.processes:
                process.attach(self.processes[name])
        return cluster
