"""`duemq backup` and `duemq restore` as an operator runs them: under load, killed half way, on another folder."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.load import Load
from tests.e2e.reconcile import final_states, nothing_pending, reconcile
from tests.e2e.server import DUEMQ, Server, environment, run, wait_for
from tests.support.patience import PROCESS_S

pytestmark = pytest.mark.slow

DELAY_FILE = ("--shards", "2", "--set", "delay_files.seal_rows=50", "--set", "delay_files.seal_windows=1")
WINDOW_MS = 1_800_000
SETTLED, BUSY = "settled", "busy"


def back_up(server: Server, into: Path, *options: str) -> Any:
    done = run("backup", into, "--data", server.data, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def restored(backup: object, data: Path) -> Path:
    done = run("restore", backup, "--data", data)
    assert done.returncode == 0, done.stderr
    checked = run("verify", "--data", data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return data


def far_ids(server: Server, count: int = 200) -> list[str]:
    """The ids of messages that are in delay files."""
    due_ms = (int(time.time() * 1000) // WINDOW_MS + 8) * WINDOW_MS
    batch = [{"topic": "far", "payload": f"far {n}", "key": f"{n}", "deliver_at": due_ms + n} for n in range(count)]
    results = server.call("POST", "/v1/messages:batch", {"messages": batch}).json()["results"]
    wait_for(lambda: server.log.count(" sealed ") == 2, "a delay file of each shard")
    return [result["id"] for result in results]


async def load_up(load: Load, senders: int) -> None:
    load.up.set()
    await load.run(senders)


def test_a_server_under_load_is_backed_up_and_goes_on_elsewhere(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, into = new_server(*DELAY_FILE).start(), tmp_path / "into"
    sealed = far_ids(server)
    settled, busy = Load([server.url], 1, SETTLED), Load([server.url], 2, BUSY)

    async def work() -> tuple[Any, Any]:
        async with asyncio.TaskGroup() as group:
            group.create_task(load_up(busy, 4))
            known = group.create_task(load_up(settled, 4))
            await asyncio.sleep(1.5)
            settled.stop()
            await known  # all that it was told came before the backup; some of it is pending still
            first = await asyncio.to_thread(back_up, server, into)
            await asyncio.sleep(0.5)
            second = await asyncio.to_thread(back_up, server, into)
            busy.stop()
        return first, second

    first, second = asyncio.run(work())
    server.kill()
    delay_files = [path.relative_to(first["backup"]) for path in Path(first["backup"]).glob("shards/*/far/*/*")]
    assert len(delay_files) == 2
    for name in delay_files:
        assert Path(second["backup"], name).samefile(Path(first["backup"], name))
    assert 0 < second["linked_bytes"] < second["bytes"]
    assert sum(shard["pending"] for shard in first["shards"]) >= len(sealed)
    server.data.rename(tmp_path / "lost")

    for number, backup in enumerate((first, second)):
        data = restored(backup["backup"], tmp_path / f"restored-{number}")
        with Server(data) as copy:
            copy.start()
            asyncio.run(nothing_pending(copy.url, SETTLED))
            asyncio.run(nothing_pending(copy.url, BUSY))
            reconcile(settled.messages.values(), copy.records(SETTLED))
            asyncio.run(final_states([copy.url], settled.messages.values()))
            twice = copy.delivered_ids(BUSY)
            assert len(set(twice)) == len(twice) > 0
            listed = copy.call("GET", "/v1/messages?topic=far&limit=1000").json()["messages"]
            assert {message["id"] for message in listed} == set(sealed)
            assert copy.call("POST", f"/v1/messages/{sealed[3]}:deliver-now").status_code == 200
            page = copy.call("GET", "/v1/topics/far/records?wait=20s").json()
            assert [record["headers"]["duemq-id"] for record in page["records"]] == sealed[3:4]
            assert copy.stop() == 0, copy.log
        checked = run("verify", "--data", data)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    for backup in (first, second):
        checked = run("restore", backup["backup"], "--check")
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_one_that_is_at_rest_as_well_and_only_the_newest_are_kept(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, into = new_server().start(), tmp_path / "into"
    later = [server.send("t", payload=f"{n}", deliver_after="1h") for n in range(5)]
    kept = [back_up(server, into)["backup"]]
    server.kill()
    later += [server.start().send("t", payload="one more", deliver_after="1h")]
    server.kill()  # what it acknowledged is only in the log's write-ahead log
    kept += [back_up(server, into)["backup"]]
    told = back_up(server, into, "--keep", "2")
    assert told["removed"] == [Path(kept[0]).name]
    assert sorted(path.name for path in into.iterdir()) == [Path(kept[1]).name, Path(told["backup"]).name]
    with Server(restored(kept[1], tmp_path / "restored")) as copy:
        listed = copy.start().call("GET", "/v1/messages?topic=t").json()["messages"]
        assert [message["id"] for message in listed] == later


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command that is to be stopped half way."""
    process = subprocess.Popen(
        [DUEMQ, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def leased(path: Path) -> Iterator[threading.Event]:
    """Whoever opens this file waits. The event says that somebody does."""
    event = threading.Event()
    before = signal.signal(signal.SIGIO, lambda *_: event.set())
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield event
    finally:
        os.close(handle)
        signal.signal(signal.SIGIO, before)


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """The exit code after this signal, and what was said."""
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_both_go_on_after_they_were_stopped_half_way(
    new_server: Callable[..., Server], tmp_path: Path, number: int
) -> None:
    server, into = new_server().start(), tmp_path / "into"
    ids = [server.send("t", payload="x" * 1000, deliver_after="1h") for _ in range(20)]
    server.kill()
    # It comes late in both, and a start takes it for what a crash left, and removes it.
    odd = server.data / "shards" / "000" / "far" / "odd.parquet"
    odd.parent.mkdir(exist_ok=True)
    odd.write_bytes(b"odd")

    with leased(odd) as met, started("backup", into, "--data", server.data) as process:
        wait_for(met.is_set, "half a backup", PROCESS_S)
        code, said = end(process, number)
    assert code != 0 and "Traceback" not in said
    assert [path.name for path in into.iterdir()] == [".partial"]
    backup = back_up(server, into)["backup"]
    assert [str(path) for path in into.iterdir()] == [backup]

    data = tmp_path / "restored"
    with (
        leased(Path(backup) / odd.relative_to(server.data)) as met,
        started("restore", backup, "--data", data) as process,
    ):
        wait_for(met.is_set, "half a restore", PROCESS_S)
        code, said = end(process, number)
    assert code != 0 and "Traceback" not in said
    refused = run("serve", "--data", data)
    assert refused.returncode == 1 and "duemq restore" in refused.stderr, refused.stderr
    with Server(restored(backup, data)) as copy:
        copy.start()
        assert [copy.state(id_)["status"] for id_ in ids] == ["scheduled"] * len(ids)


def test_one_that_is_killed_leaves_nothing_with_the_server(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server().start()
    server.send("t", payload="x", deliver_after="1h")
    first = Path(back_up(server, tmp_path / "into")["backup"])
    options = ("backup", tmp_path / "into", "--data", server.data)
    with leased(first / "backup.json") as met, started(*options) as process:
        wait_for(met.is_set, "a backup that begins", PROCESS_S)
        assert list(server.data.glob("snapshots/*"))
        end(process, signal.SIGKILL)
    wait_for(lambda: not list(server.data.glob("snapshots/*")), "the snapshot to go")
    back_up(server, tmp_path / "into")
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log


def test_damage_is_refused_and_the_file_is_named(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server(*DELAY_FILE).start()
    far_ids(server)
    backup = Path(back_up(server, tmp_path / "into")["backup"])
    delay_file = next(backup.glob("shards/*/far/*/*.parquet"))
    content = bytearray(delay_file.read_bytes())
    content[len(content) // 2] ^= 4
    delay_file.write_bytes(content)
    refused = run("restore", backup, "--data", tmp_path / "restored", "--json")
    assert refused.returncode == 1
    assert str(delay_file) in refused.stderr and str(delay_file) in json.loads(refused.stdout)["error"]["detail"]
    checked = run("restore", backup, "--check")
    assert checked.returncode == 1 and str(delay_file) in checked.stderr
    assert run("serve", "--data", tmp_path / "restored").returncode == 1


def test_what_cannot_be_is_refused_in_a_sentence(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server, into = new_server().start(), tmp_path / "into"
    for path, words in ((server.data / "backups", "inside"), (server.data, "inside")):
        refused = run("backup", path, "--data", server.data)
        assert refused.returncode == 1 and words in refused.stderr, refused.stderr
    refused = run("backup", into, "--data", tmp_path / "nowhere")
    assert refused.returncode == 1 and "not a data folder" in refused.stderr
    assert not (tmp_path / "nowhere").exists() and not into.exists()
    backup = back_up(server, into)["backup"]
    for data, words in ((server.data, "not empty"), (Path(backup), "not empty")):
        refused = run("restore", backup, "--data", data)
        assert refused.returncode == 1 and words in refused.stderr, refused.stderr
    for command in ("serve", "verify"):
        refused = run(command, "--data", backup)
        assert refused.returncode == 1 and "is a backup" in refused.stderr
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    shutil.rmtree(into)
