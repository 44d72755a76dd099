"""Files handed over together to a server on Kafka: one transaction, and ids that are those of the messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from duemq.client import Admin
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.timing import WINDOW_MS
from tests.e2e.server import Server, wait_for
from tests.e2e.test_import import COUNT, drafts, window_ahead
from tests.support.shard.import_schedule import write_messages


@pytest.mark.slow
def test_many_files_on_kafka(new_server: Callable[..., Server], tmp_path: Path, own_kafka: KafkaServers) -> None:
    shared, window = tmp_path / "shared", window_ahead(4)
    server = new_server("--set", f"delay_files.import_from={shared}", "--kafka", own_kafka.bootstrap).start()
    files = []
    for number in range(5):
        made = drafts(window + number % 2 * WINDOW_MS)[number:]
        said = asdict(write_messages(shared / f"{number}.parquet", made))
        files.append({name: value for name, value in said.items() if name != "link"})
    with Admin(server.url) as client:
        first = client.import_files(files[:2], link=True)
        second = client.import_files(files, link=True)
        assert [one.id for one in second[:2]] == [one.id for one in first]
        assert [one.duplicate for one in second] == [True, True, False, False, False]
        wait_for(lambda: len(client.imports("imported")) == 5, "all imports")
        ids = client.imported_ids(second[4].id, COUNT - 6, 100)
        assert [client.get(id_).state.payload for id_ in ids] == [b"far %d" % (COUNT - 2), b"far %d" % (COUNT - 1)]
        assert client.cancel_many(ids).counts["cancelled"] == 2
        server.kill()
        server.start()
        assert client.imported_ids(second[4].id, COUNT - 6, 100) == ids
        assert [one.duplicate for one in client.import_files(files)] == [True] * 5
