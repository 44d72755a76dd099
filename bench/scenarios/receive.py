"""`receive`: how fast the workers of a group receive and acknowledge over HTTP."""

from collections.abc import Sequence

import orjson

from duemq.bench.base.session import now_ms
from duemq.bench.clients.group_workers import receive_all
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.bench.system.system import SiteError, get

_WITHIN_S = 120.0


def receive(harness: Harness, *, count: int, workers: int, at_a_time: Sequence[int]) -> ScenarioOutcome:
    """`count` delivered messages, for each size of a receive by a new group."""
    if harness.site.bootstrap is not None:
        raise SiteError("messages are leased by `duemq serve` with its own log: use --on embedded")
    low = int(now_ms())
    sent = harness.fill(harness.job(count, SendWindow(low, low + 1), 1), "filling")
    topic, url = harness.topic, harness.site.url

    def delivered() -> int:
        status, body = get(url, f"/v1/topics/{topic}")
        return int(orjson.loads(body)["records"]) if status == 200 else 0

    harness.sleep_while(lambda: delivered() < sent.accepted, _WITHIN_S, "delivering")
    figures: list[Figure] = []
    for most in at_a_time:
        before = harness.site.bill()
        worker = harness.spawn(receive_all, url, topic, f"of-{most}", workers, most)
        work = harness.wait(worker, f"{workers} workers, {most} at a time", count)
        seconds = max(work.ended_ms - work.began_ms, 1.0) / 1000
        cost = next(iter(shared_figures.cost_figures(harness, before, len(work.ids))), None)
        figures.append(
            Figure(f"rate_{most}", f"received and acked, {most} at a time", len(work.ids) / seconds, "msg/s")
        )
        if cost is not None:
            figures.append(Figure(f"cpu_us_{most}", "  server CPU per message", cost.value, "us"))
        twice = len(work.ids) - len(set(work.ids))
        figures += (
            vital(f"twice_{most}", "received twice", twice),
            vital(f"lost_{most}", "not received", len(set(sent.ids) - set(work.ids))),
            vital(f"late_{most}", "acked too late", work.late),
        )
    return ScenarioOutcome(tuple(figures), shared_figures.notes(sent))
