"""Two clusters on one Kafka, and a restore under clients that hold ids of lost messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.faults import second_cluster
from tests.chaos.world import RECOVERED_S, World
from tests.e2e.server import Server, run, wait_for

ROUNDS, COUNT = 3, 400


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.xdist_group("chaos")
def test_a_second_cluster_works_on_the_same_brokers(world: Callable[..., World]) -> None:
    world().run(second_cluster.run_second_cluster)


def _send(server: Server, names: list[str], due: int) -> dict[str, str]:
    """Messages that are all due in one ms, as a daily mailing is; their ids by name."""
    messages = [{"topic": "daily", "payload": name, "deliver_at": due} for name in names]
    results = server.call("POST", "/v1/messages:batch", {"messages": messages}).json()["results"]
    return {name: result["id"] for name, result in zip(names, results, strict=True)}


@pytest.mark.chaos
@pytest.mark.smoke
def test_ids_of_what_a_restore_lost_mean_no_message_of_others(tmp_path: Path) -> None:
    """Lost messages are sent again in another order, while clients cancel by the old ids."""
    due = int(time.time() * 1000) // 60_000 * 60_000 + 3_600_000
    lost: dict[str, str] = {}
    kept: dict[str, str] = {}
    with Server(tmp_path / "data", "--shards", "2") as server:
        server.start()
        for round_ in range(ROUNDS):
            names = [f"{round_}.{number}" for number in range(COUNT)]
            kept |= _send(server, names[: COUNT // 2], due)
            assert run("backup", tmp_path / "backups", "--data", server.data).returncode == 0
            gone = _send(server, names[COUNT // 2 :], due)
            server.kill()
            server.data.rename(tmp_path / f"lost-{round_}")
            (backup,) = sorted((tmp_path / "backups").glob("2*"))[-1:]
            assert run("restore", backup, "--data", server.data).returncode == 0
            server.start()
            kept |= _send(server, names[: COUNT // 2 - 1 : -1], due)
            lost |= {f"{name} lost": id_ for name, id_ in gone.items()}
            answers = Counter(server.call("DELETE", f"/v1/messages/{id_}").status_code for id_ in lost.values())
            assert answers == {404: len(lost)}, answers
        assert len({*kept.values(), *lost.values()}) == len(kept) + len(lost), "an id was issued twice"
        for id_ in kept.values():
            assert server.call("POST", f"/v1/messages/{id_}:deliver-now").is_success
        wait_for(lambda: len(server.records("daily")) >= len(kept), "all deliveries", RECOVERED_S)
        delivered = server.records("daily")
        assert Counter(record["headers"]["duemq-id"] for record in delivered) == Counter(kept.values())
        assert sorted(record["payload"] for record in delivered) == sorted(kept)
