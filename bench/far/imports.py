"""`import`: imports very many messages from files, one file per window, and measures the time and the later cost."""

import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import orjson

from duemq.bench.base.session import now_ms
from duemq.bench.clients import import_files
from duemq.bench.clients.import_files import WINDOW_MS, FilePlan
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.far import waiting
from duemq.bench.far.stream import lateness_figures
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.bench.system.metrics import gauge
from duemq.bench.system.system import SiteError, get
from duemq.dev.servers.usage import holder

_SINGLES, _BULK = 1_000, 10_000
_WINDOWS_ASKED = 1_000
_SPARE_S, _FEWEST_PER_S = 120.0, 100_000  # time for all earlier steps, before the first window begins
_CHANGES_S = 180.0  # time for look-ups and cancels
_LOOK_EVERY_S = 0.5
_NOT_COUNTED_MS = 2_000  # a message due this shortly before the reading ends may still be in flight
_START = "import sys; from duemq.cli.main import main; sys.exit(main())"


def import_windows(
    harness: Harness, *, count: int, days: float, deliver_s: float, link: bool = False
) -> ScenarioOutcome:
    """Import about `count` messages over `days` days in one go, with one file per half hour.

    Then do a kill -9, a restart, look-ups and cancels, and read the first `deliver_s` seconds of the next window (0:
    skip this). `link`: write files that duemq can link instead of copying.
    """
    if harness.site.folder is None:
        raise SiteError(f"the server at {harness.site.url} is not ours: it would not read the files from here")
    before = harness.site.bill()
    files = max(round(days * 86_400_000 / WINDOW_MS), 2)
    first = int(now_ms() + (_SPARE_S + count / _FEWEST_PER_S) * 1000) // WINDOW_MS * WINDOW_MS + WINDOW_MS
    rows, setup = max(count // files, 1), harness.setup
    plan = FilePlan(first, files, rows, harness.topic, setup.payload_bytes, setup.seed, complete=link)
    folder = Path(tempfile.mkdtemp(prefix="duemq-bench-files-", dir=harness.site.folder.parent))
    try:
        figures, notes = _import_file(harness, plan, folder, link)
    finally:
        shutil.rmtree(folder)
    number = max(-((first - int(now_ms() + _CHANGES_S * 1000)) // WINDOW_MS), 0)
    ids = _ids(harness, plan, 2 * _SINGLES + _BULK, number)
    figures += waiting.restart(harness, ids)
    figures += (vital("missing", "of 500 looked up after kill -9, not there", harness.missing(ids)),)
    figures += waiting.changes(harness, waiting.sample(ids, _SINGLES, _BULK, harness.setup.seed))
    if deliver_s and now_ms() < plan.window(number) and number < files:
        figures += _read_window(harness, plan, number, deliver_s)
    elif deliver_s:
        notes += ("no window was left to be read as it was delivered",)
    return ScenarioOutcome((*figures, *shared_figures.cost_figures(harness, before, plan.count)), notes)


def _import_file(
    harness: Harness, plan: FilePlan, folder: Path, link: bool
) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    began = time.monotonic()
    with harness.screen.phase("writing files", plan.files) as advance:
        for done in import_files.write_all(plan, folder):
            advance(done)
    written_s = time.monotonic() - began
    size = sum(path.stat().st_size for path in folder.iterdir())
    harness.site.stop()
    harness.site.start({"delay_files.import_from": str(folder)})
    empty = harness.site.bill() or ()
    imported_s = _run(harness, plan, folder, link)
    quiet = harness.wait_until_quiet(180 + plan.count / _FEWEST_PER_S)
    disk, bill_at_rest = harness.site.disk_bytes() or math.nan, harness.site.bill() or ()
    return (
        Figure("written_rate", "rows written to files beforehand", plan.count / written_s, "msg/s"),
        Figure("source_b", "  bytes per message in these files", size / plan.count, "B"),
        Figure("import_s", "importing took", imported_s, "s"),
        Figure("import_rate", "  imported", plan.count / imported_s, "msg/s"),
        vital("not_pending", "imported, but not pending", plan.count - _pending(harness)),
        *waiting.far_figures(harness),
        Figure("rss_settled_mib", "server memory, settled", holder(bill_at_rest).rss_bytes / shared_figures.MIB, "MiB"),
        Figure("rss_grown_mib", "  growth", _growth(holder(empty).rss_bytes, holder(bill_at_rest).rss_bytes), "MiB"),
        Figure("disk_b", "disk per message, settled", disk / plan.count, "B"),
        Figure("disk_ratio", "  by payload bytes", disk / plan.count / plan.payload_bytes, "x"),
    ), () if quiet else ("the data folder never came to rest: its size is a snapshot",)


def _growth(before: int, after: int) -> float:
    return (after - before) / shared_figures.MIB


def _run(harness: Harness, plan: FilePlan, folder: Path, link: bool) -> float:
    """Run `duemq import` on all files; return the seconds until all were imported. Raises SiteError with the command's
    output."""
    command = [sys.executable, "-P", "-c", _START, "import", "--url", harness.site.url, *["--link"][:link], str(folder)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, harness.screen.phase("importing", plan.count) as advance:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            while process.poll() is None:
                advance(_pending(harness))
                harness.site.bill()
                time.sleep(_LOOK_EVERY_S)
        finally:
            process.kill()
        took_s = time.monotonic() - began
        output.seek(0)
        if process.returncode:
            raise SiteError(
                f"duemq import ended with exit code {process.returncode}:\n{output.read()[-2000:].decode()}"
            )
    return took_s


def _pending(harness: Harness) -> int:
    return int(gauge(harness.site.url, "duemq_pending_messages") or 0)


def _ids(harness: Harness, plan: FilePlan, count: int, untouched: int) -> list[str]:
    """The ids of imported messages from many windows after the window `untouched`, because that one is delivered
    without changes."""
    random = np.random.default_rng(plan.seed)
    if untouched + 1 >= plan.files:
        raise SiteError("importing took so long that no window is left to be asked for")
    numbers = random.permutation(np.arange(untouched + 1, plan.files))[:_WINDOWS_ASKED].tolist()
    each = -(-count // len(numbers))
    ids: dict[str, None] = {}
    with harness.screen.phase("asking for ids", len(numbers)) as advance:
        for done, number in enumerate(numbers, 1):
            rows = plan.dues(number)
            place = int(random.integers(0, max(len(rows) - each, 1)))
            query = {"topic": plan.topic, "due_from": int(rows[place]), "due_to": plan.window(number + 1)}
            status, body = get(harness.site.url, "/v1/messages?" + urlencode(query | {"limit": min(each, 1000)}))
            if status != 200:
                raise SiteError(f"asked for a list of imported messages: HTTP {status} {body[:200]!r}")
            ids.update((message["id"], None) for message in orjson.loads(body)["messages"])
            advance(done)
    return list(ids)


def _read_window(harness: Harness, plan: FilePlan, number: int, seconds: float) -> tuple[Figure, ...]:
    """Read the beginning of a window while it is being delivered, and compare it with the window's file."""
    reader = harness.reader()
    harness.sleep_until(plan.window(number) + seconds * 1000, "until a window has been delivered for a while")
    counted_until = now_ms() - _NOT_COUNTED_MS
    reader.stop()
    received = reader.result()
    inside = received.due >= plan.window(number)
    late = (received.at - received.due)[inside]
    return (*judged(plan, number, received, counted_until), *lateness_figures("file_late", "  lateness", late))


def judged(plan: FilePlan, number: int, received: ReceivedRecords, counted_until_ms: float) -> tuple[Figure, ...]:
    """Compare the records that were read with the messages in file `number` that were due by then. For earlier files,
    check only for wrong records."""
    dues = np.concatenate([plan.dues(each) for each in range(number + 1)])
    first = number * plan.rows
    expected = first + np.flatnonzero(dues[first:] < counted_until_ms)
    seqs, times = np.unique(received.seq, return_counts=True)
    ours = (received.seq >= 0) & (received.seq < len(dues))
    wrong = np.count_nonzero(~ours) + np.count_nonzero(dues[received.seq[ours]] != received.due[ours])
    return (
        Figure("file_read", "messages of one file read as they were delivered", int(np.count_nonzero(seqs >= first))),
        vital("file_lost", "  due, never read", len(np.setdiff1d(expected, seqs))),
        vital("file_twice", "  read more than once", int((times - 1).sum())),
        vital("file_early", "  read before due", int(np.count_nonzero(received.at < received.due))),
        vital("file_wrong", "  wrong due time, or never imported for that time", int(wrong)),
    )
