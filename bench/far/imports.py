"""`import`: very many messages handed over in files, one per window: how long that takes, and what they cost then."""

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
from duemq.bench.clients.import_files import WINDOW_MS, Plan
from duemq.bench.clients.reader import Received
from duemq.bench.far import waiting
from duemq.bench.far.stream import lateness_figures
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import parts
from duemq.bench.system.metrics import gauge
from duemq.bench.system.system import SiteError, get
from duemq.dev.servers.usage import holder

_SINGLES, _BULK = 1_000, 10_000
_WINDOWS_ASKED = 1_000
_SPARE_S, _FEWEST_PER_S = 120.0, 100_000  # until the first window begins: for all that comes before
_CHANGES_S = 180.0  # until look-ups and cancels are over
_LOOK_EVERY_S = 0.5
_NOT_COUNTED_MS = 2_000  # due so shortly before the reading ends that it may be on its way
_START = "import sys; from duemq.cli.main import main; sys.exit(main())"


def import_windows(stage: Harness, *, count: int, days: float, deliver_s: float, link: bool = False) -> ScenarioOutcome:
    """About `count` messages over `days` days, a file per half hour, are imported in one go.

    Then kill -9, a start, look-ups and cancels, and the first `deliver_s` seconds of the next window (0: none).
    `link`: the files are such that duemq can link them where it would copy others.
    """
    if stage.site.folder is None:
        raise SiteError(f"the server at {stage.site.url} is not ours: it would not read the files from here")
    before = stage.site.bill()
    files = max(round(days * 86_400_000 / WINDOW_MS), 2)
    first = int(now_ms() + (_SPARE_S + count / _FEWEST_PER_S) * 1000) // WINDOW_MS * WINDOW_MS + WINDOW_MS
    rows, setup = max(count // files, 1), stage.setup
    plan = Plan(first, files, rows, stage.topic, setup.payload_bytes, setup.seed, complete=link)
    folder = Path(tempfile.mkdtemp(prefix="duemq-bench-files-", dir=stage.site.folder.parent))
    try:
        figures, notes = _import_file(stage, plan, folder, link)
    finally:
        shutil.rmtree(folder)
    number = max(-((first - int(now_ms() + _CHANGES_S * 1000)) // WINDOW_MS), 0)
    ids = _ids(stage, plan, 2 * _SINGLES + _BULK, number)
    figures += waiting.restart(stage, ids)
    figures += (vital("missing", "of 500 looked up after kill -9, not there", stage.missing(ids)),)
    figures += waiting.changes(stage, waiting.sample(ids, _SINGLES, _BULK, stage.setup.seed))
    if deliver_s and now_ms() < plan.window(number) and number < files:
        figures += _read_window(stage, plan, number, deliver_s)
    elif deliver_s:
        notes += ("no window was left to be read as it was delivered",)
    return ScenarioOutcome((*figures, *parts.cost_figures(stage, before, plan.count)), notes)


def _import_file(stage: Harness, plan: Plan, folder: Path, link: bool) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    began = time.monotonic()
    with stage.screen.phase("writing files", plan.files) as advance:
        for done in import_files.write_all(plan, folder):
            advance(done)
    written_s = time.monotonic() - began
    size = sum(path.stat().st_size for path in folder.iterdir())
    stage.site.stop()
    stage.site.start({"delay_files.import_from": str(folder)})
    empty = stage.site.bill() or ()
    imported_s = _run(stage, plan, folder, link)
    quiet = stage.settle(180 + plan.count / _FEWEST_PER_S)
    disk, bill_at_rest = stage.site.disk_bytes() or math.nan, stage.site.bill() or ()
    return (
        Figure("written_rate", "rows written to files beforehand", plan.count / written_s, "msg/s"),
        Figure("source_b", "  bytes per message in these files", size / plan.count, "B"),
        Figure("import_s", "importing took", imported_s, "s"),
        Figure("import_rate", "  imported", plan.count / imported_s, "msg/s"),
        vital("not_pending", "imported, but not pending", plan.count - _pending(stage)),
        *waiting.far_figures(stage),
        Figure("rss_settled_mib", "server memory, settled", holder(bill_at_rest).rss_bytes / parts.MIB, "MiB"),
        Figure("rss_grown_mib", "  growth", _growth(holder(empty).rss_bytes, holder(bill_at_rest).rss_bytes), "MiB"),
        Figure("disk_b", "disk per message, settled", disk / plan.count, "B"),
        Figure("disk_ratio", "  by payload bytes", disk / plan.count / plan.payload_bytes, "x"),
    ), () if quiet else ("the data folder never came to rest: its size is that of a moment",)


def _growth(before: int, after: int) -> float:
    return (after - before) / parts.MIB


def _run(stage: Harness, plan: Plan, folder: Path, link: bool) -> float:
    """`duemq import` of all files; seconds until all are imported. Raises SiteError with what it said."""
    command = [sys.executable, "-P", "-c", _START, "import", "--url", stage.site.url, *["--link"][:link], str(folder)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, stage.screen.phase("importing", plan.count) as advance:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            while process.poll() is None:
                advance(_pending(stage))
                stage.site.bill()
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


def _pending(stage: Harness) -> int:
    return int(gauge(stage.site.url, "duemq_pending_messages") or 0)


def _ids(stage: Harness, plan: Plan, count: int, untouched: int) -> list[str]:
    """Ids of imported messages from many windows, but none up to `untouched`: that one is to be delivered as it is."""
    random = np.random.default_rng(plan.seed)
    if untouched + 1 >= plan.files:
        raise SiteError("importing took so long that no window is left to be asked for")
    numbers = random.permutation(np.arange(untouched + 1, plan.files))[:_WINDOWS_ASKED].tolist()
    each = -(-count // len(numbers))
    ids: dict[str, None] = {}
    with stage.screen.phase("asking for ids", len(numbers)) as advance:
        for done, number in enumerate(numbers, 1):
            rows = plan.dues(number)
            place = int(random.integers(0, max(len(rows) - each, 1)))
            query = {"topic": plan.topic, "due_from": int(rows[place]), "due_to": plan.window(number + 1)}
            status, body = get(stage.site.url, "/v1/messages?" + urlencode(query | {"limit": min(each, 1000)}))
            if status != 200:
                raise SiteError(f"asked for a list of imported messages: HTTP {status} {body[:200]!r}")
            ids.update((message["id"], None) for message in orjson.loads(body)["messages"])
            advance(done)
    return list(ids)


def _read_window(stage: Harness, plan: Plan, number: int, seconds: float) -> tuple[Figure, ...]:
    """The beginning of a window, read as it is delivered, and compared with what its file holds."""
    reader = stage.reader()
    stage.sleep_until(plan.window(number) + seconds * 1000, "until a window has been delivered for a while")
    counted_until = now_ms() - _NOT_COUNTED_MS
    reader.stop()
    received = reader.result()
    inside = received.due >= plan.window(number)
    late = (received.at - received.due)[inside]
    return (*judged(plan, number, received, counted_until), *lateness_figures("file_late", "  lateness", late))


def judged(plan: Plan, number: int, received: Received, counted_until_ms: float) -> tuple[Figure, ...]:
    """What came of file `number`, against what of it was due until then; of those before it only what is wrong."""
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
        vital("file_wrong", "  due time wrong, or never imported for so early", int(wrong)),
    )
