"""`load`: a very full window is sealed, and loaded again, during a steady stream. How late is the stream?"""

import math
import time

from duemq.bench.base.session import now_ms
from duemq.bench.clients.send import SendWindow
from duemq.bench.far.stream import LoadStream, during, joined, lateness_figures, ratio
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import Tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.bench.system import delay_files
from duemq.bench.system.delay_files import Span, Work
from duemq.bench.system.system import SiteError

WINDOW_MS = 1_800_000
_IDS = 1_000
_FEWEST_PER_S = 10_000  # messages filled, sealed or loaded on a slow machine
_QUIET_S = 15.0  # time before and after the load
_START_S = 5.0
_AROUND_MS = 1_000.0  # margin around a span; this time does not count as quiet either


def load(harness: Harness, *, count: int, rate: float) -> ScenarioOutcome:
    """`count` messages for one window half an hour ahead are sealed, then loaded, in both cases while `rate` messages/s
    are due.

    In between, the server is killed with kill -9 and started with an earlier time for loading, so that the bench need
    not wait for the window.
    """
    folder = harness.site.folder
    if folder is None:
        raise SiteError(f"the server at {harness.site.url} is not ours: its delay files cannot be seen")
    patience_s = 60 + count / _FEWEST_PER_S
    # The first far window: two windows after the one during which it is sealed.
    window = int(now_ms() + patience_s * 1000) // WINDOW_MS * WINDOW_MS + 2 * WINDOW_MS
    before = harness.site.bill()
    sent = harness.fill(harness.job(count, SendWindow(window, window + WINDOW_MS), max(count // _IDS, 1)), "filling")
    stream = LoadStream(harness, "sealing", rate)
    sealed = _watch(harness, "seal", patience_s)
    harness.sleep_until(now_ms() + _AROUND_MS, "sealed")
    first = stream.end()
    disk, files = harness.site.disk_bytes(), delay_files.counts(folder).files
    harness.site.bill()
    harness.site.kill()
    load_at_ms = now_ms() + (_START_S + _QUIET_S) * 1000
    ahead_ms = int(window - load_at_ms)
    harness.site.start(
        {"delay_files.load_ahead": str(ahead_ms), "delay_files.seal_windows": str(ahead_ms // WINDOW_MS + 1)}
    )
    stream = LoadStream(harness, "loading", rate)
    loaded = _watch(harness, "load", _START_S + _QUIET_S + patience_s)
    harness.sleep_until(now_ms() + _QUIET_S * 1000, "loaded")
    second = stream.end()
    counts = joined(first, second)
    left = delay_files.counts(folder).files
    cost = shared_figures.cost_figures(harness, before, sent.accepted + counts.accepted)
    figures = (
        Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),
        Figure("seal_s", "sealing took", sealed.seconds, "s"),
        Figure("seal_rate", "  sealed", sent.accepted / sealed.seconds, "msg/s"),
        Figure("load_s", "loading took", loaded.seconds, "s"),
        Figure("load_rate", "  loaded", sent.accepted / loaded.seconds, "msg/s"),
        *_lateness(counts, sealed, loaded),
        *shared_figures.count_figures(counts),
        vital("missing", "sealed and loaded, not there", harness.missing(sent.ids)),
        vital("not_sealed", "windows that were not sealed", int(files == 0)),
        vital("not_loaded", "delay files left after the load", left),
        Figure("disk_b", "disk per message, sealed", (disk or math.nan) / max(sent.accepted, 1), "B"),
        *cost,
    )
    return ScenarioOutcome(figures, shared_figures.notes(sent, cost), shared_figures.lateness_trace(second))


def _watch(harness: Harness, work: Work, within_s: float) -> Span:
    """Wait for this work on a window; return when it happened. Raises SiteError if it does not happen."""

    def meanwhile() -> None:
        harness.hear()
        harness.site.bill()  # the memory of the process that does the work counts as the server's

    assert harness.site.folder is not None
    with harness.screen.phase(f"delivering, while a window is to {work}", 1):
        span = delay_files.watch(harness.site.folder, work, within_s, meanwhile)
        end = time.monotonic() + _AROUND_MS / 1000
        while time.monotonic() < end:
            harness.hear()
            time.sleep(0.1)
    if span is None:
        raise SiteError(f"no window to {work} appeared within {within_s:.0f} s")
    return span


def _lateness(counts: Tally, sealed: Span, loaded: Span) -> tuple[Figure, ...]:
    late = counts.lateness_ms
    near = [Span(each.began_ms - _AROUND_MS, each.ended_ms + _AROUND_MS) for each in (sealed, loaded)]
    quiet = late[~during(counts, near)]
    sealing, loading = late[during(counts, [sealed])], late[during(counts, [loaded])]
    return (
        *lateness_figures("late", "lateness while loading", loading),
        *lateness_figures("late_seal", "lateness while sealing", sealing),
        *lateness_figures("late_quiet", "lateness at other times", quiet),
        Figure("late_ratio", "p99 while loading by that at other times", ratio(loading, quiet), "x"),
        Figure("due_loading", "messages due while loading", len(loading)),
    )
