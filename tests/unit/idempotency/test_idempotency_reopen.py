"""A store in RocksDB that fails: it opens itself anew, and what was not known is known then."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest
from rocksdict import Options, Rdict

from duemq.client.consumer.retry.policy import Pause
from duemq.client.idempotency.base import Done, Fresh, InDoubt, Running
from duemq.client.idempotency.once import once
from duemq.client.idempotency.rocks import RocksStore
from duemq.client.idempotency.rocks_layout import open_folder
from duemq.model.errors import CorruptStore, StoreFailed
from tests.support.consumer.idempotency_world import MINUTE, T0, Mail
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

STEPS = ["before_write", "after_write", "after_sync"]

T = TypeVar("T")


@pytest.fixture(autouse=True)
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.idempotency.rocks._PAUSE_S", 0.001)
    monkeypatch.setattr("duemq.client.idempotency.rocks._LONGEST_PAUSE_S", 0.004)


class Faults:
    """Called by the store's thread. `next`: how often a step fails from now on."""

    def __init__(self) -> None:
        self.next: dict[str, int] = {}
        self.meanwhile: Callable[[], object] = lambda: None  # before each try to open it anew
        self.tries = 0

    def __call__(self, step: str) -> None:
        if step == "before_reopen":
            self.tries += 1
            self.meanwhile()
        if self.next.get(step, 0) > 0:
            self.next[step] -= 1
            raise OSError(f"{step}: no more")


async def back(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of the store once it is open again."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await ask()
            except StoreFailed:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("step", STEPS)
async def test_a_failure_is_told_to_all_who_wait_and_the_store_opens_itself_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    faults = Faults()
    store = await RocksStore.open(tmp_path, faults)
    await store.begin(b"done", "a", T0, MINUTE, MINUTE)
    await store.finish(b"done", "a", b"1", T0, MINUTE)
    await store.begin(b"running", "a", T0, MINUTE, MINUTE)
    faults.next = {step: 1}
    told = await asyncio.gather(
        *(store.begin(b"%d" % n, "a", T0, MINUTE, MINUTE, True) for n in range(3)), return_exceptions=True
    )
    assert [str(each) for each in told] == [f"writing idempotency keys: {step}: no more"] * 3
    assert all(isinstance(each, StoreFailed) for each in told)
    with pytest.raises(StoreFailed, match=f"not reopened yet: .*{step}: no more"):
        await store.finish(b"k", "a", b"1", T0, MINUTE)
    assert await back(lambda: store.begin(b"done", "b", T0, MINUTE, MINUTE)) == Done(b"1")
    assert await store.begin(b"running", "b", T0, MINUTE, MINUTE) == Running("a", T0, T0 + MINUTE), "one session"
    settled = await store.begin(b"0", "b", T0 + 1, MINUTE, MINUTE, True)
    landed = Running("a", T0, T0 + MINUTE)
    assert settled == (Fresh() if step == "before_write" else landed), "what is on the disk is true"
    repeat = [await store.begin(b"%d" % n, "a", T0, MINUTE, MINUTE, True) for n in (1, 2)]
    assert repeat == [Fresh()] * 2, "a repeat of who asked is answered as the first time"
    assert "failed and is being reopened" in caplog.text and "is open again" in caplog.text
    await store.close()


async def test_it_is_tried_until_it_opens_after_pauses_that_grow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults()
    store = await RocksStore.open(tmp_path, faults)
    faults.next = {"after_sync": 1, "before_reopen": 4}
    with pytest.raises(StoreFailed):
        await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    assert await back(lambda: store.begin(b"k", "a", T0, MINUTE, MINUTE)) == Fresh()
    assert faults.tries == 5
    pauses = [each.getMessage() for each in caplog.records if "cannot be reopened" in each.getMessage()]
    assert [each.partition("the next attempt is in ")[2].partition(" s")[0] for each in pauses] == [
        "0.002", "0.004", "0.004", "0.004",
    ]  # fmt: skip
    await store.close()


async def test_a_folder_that_is_away_for_a_while(tmp_path: Path) -> None:
    """As of a disk that is not mounted: an empty one is there instead, and must not be taken for it."""
    folder, aside, faults = tmp_path / "keys", tmp_path / "aside", Faults()

    def meanwhile() -> None:
        if faults.tries == 1:
            folder.rename(aside)
            folder.mkdir()
        elif faults.tries == 3:
            for each in folder.iterdir():
                each.unlink()
            folder.rmdir()
            aside.rename(folder)

    faults.meanwhile = meanwhile
    store = await RocksStore.open(folder, faults)
    await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    faults.next = {"after_sync": 1}
    with pytest.raises(StoreFailed):
        await store.finish(b"k", "a", b"1", T0, MINUTE)
    assert await back(lambda: store.begin(b"k", "b", T0, MINUTE, MINUTE)) == Done(b"1")
    assert faults.tries == 3
    await store.close()


async def test_a_folder_that_another_process_has_had_meanwhile_stays_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It took what was running here for its own."""
    faults, taken, never = Faults(), Event(), asyncio.Event()

    def take() -> None:
        if not taken.is_set():
            db, _ = open_folder(tmp_path)
            db.close()
            taken.set()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.CRITICAL:
                never.set()

    faults.meanwhile = take
    store = await RocksStore.open(tmp_path, faults)
    faults.next = {"before_write": 1}
    seen = Seen()
    logging.getLogger("duemq.client.idempotency.rocks").addHandler(seen)
    try:
        with pytest.raises(StoreFailed):
            await store.begin(b"k", "a", T0, MINUTE, MINUTE)
        await never.wait()
    finally:
        logging.getLogger("duemq.client.idempotency.rocks").removeHandler(seen)
    assert "is at session 2 and not at 1" in caplog.text
    with pytest.raises(StoreFailed, match="another process opened it"):
        await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    await store.close()
    store = await RocksStore.open(tmp_path)
    assert await store.begin(b"k", "b", T0, MINUTE, MINUTE) == Fresh()
    await store.close()


async def test_a_store_that_cannot_be_opened_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duemq.client.idempotency.rocks._PAUSE_S", 3_600.0)
    faults = Faults()
    store = await RocksStore.open(tmp_path, faults)
    faults.next = {"after_sync": 1}
    with pytest.raises(StoreFailed):
        await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    await store.close()
    assert faults.tries == 0 and "cannot close" not in caplog.text
    store = await RocksStore.open(tmp_path)
    with pytest.raises(InDoubt):
        await store.begin(b"k", "b", T0, MINUTE, MINUTE, True)
    await store.close()


@contextmanager
def files_cannot_grow() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_refuses_writes_for_a_while(tmp_path: Path) -> None:
    """Real ones of RocksDB. What was done before is known behind it, what was refused is not."""
    store = await RocksStore.open(tmp_path)
    await store.begin(b"done", "a", T0, MINUTE, MINUTE)
    await store.finish(b"done", "a", b"1", T0, MINUTE)
    await store.begin(b"running", "a", T0, MINUTE, MINUTE)
    with files_cannot_grow():
        for _ in range(3):
            with pytest.raises(StoreFailed):
                await store.finish(b"running", "a", b"2", T0, MINUTE)
            await asyncio.sleep(0.005)  # some tries to open it anew
    assert await back(lambda: store.begin(b"done", "b", T0, MINUTE, MINUTE)) == Done(b"1")
    assert await store.begin(b"running", "b", T0, MINUTE, MINUTE) == Running("a", T0, T0 + MINUTE)
    assert await store.finish(b"running", "a", b"2", T0, MINUTE)
    await store.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [1, 2], ids=["begin", "finish"])
async def test_work_over_a_failure_is_done_once(tmp_path: Path, step: str, at: int) -> None:
    """A begin that fails pauses; a finish is tried again until the store is open."""
    faults, effects = Faults(), list[str]()
    store, writes = await RocksStore.open(tmp_path, lambda name: count(name)), 0

    def count(name: str) -> None:
        nonlocal writes
        writes += name == "before_write"
        if writes == at and name == "before_write":
            faults.next = {step: 1}
        faults(name)

    @once(store, scope="s", at_most_once=True, store_timeout=timedelta(seconds=60), clock=lambda: T0)
    async def handle(mail: Mail) -> str:
        effects.append(mail.id)
        return "done"

    async def ask() -> Any:
        try:
            return await handle(Mail("a"))
        except Pause as pause:
            raise StoreFailed("") from pause

    assert await back(ask) == "done"
    assert effects == ["a"]
    assert isinstance(await store.begin(b"s\0a", "b", T0, MINUTE, MINUTE, True), Done)
    await store.close()


async def test_a_damaged_row_is_told_to_who_asks_for_it_and_stops_nobody_else(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path)
    for key in (b"1", b"2", b"3"):
        await store.begin(key, "a", T0, MINUTE, MINUTE)
    await store.close()
    db = Rdict(str(tmp_path), Options(raw_mode=True))
    db.put(b"k2", b"damaged")
    db.close()
    store = await RocksStore.open(tmp_path)
    found = await asyncio.gather(
        *(store.begin(key, "b", T0, MINUTE, MINUTE) for key in (b"1", b"2", b"3")), return_exceptions=True
    )
    assert [type(each) for each in found] == [Fresh, CorruptStore, Fresh]
    assert await store.expire(T0 + 60 * MINUTE) == 3, "it is removed with the others, and what is behind it, too"
    assert await store.begin(b"2", "b", T0 + 60 * MINUTE, MINUTE, MINUTE) == Fresh()
    await store.close()
