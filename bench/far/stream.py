"""A steady stream during other work, which shows how that work affects the stream's lateness."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from duemq.bench.clients.send import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import Tally, spread, tally
from duemq.bench.report.figures import Figure
from duemq.bench.system.delay_files import Span

_SOON = SendWindow(500, 3_000)
_LASTS_S = 3_600.0


class LoadStream:
    """Sends and reads messages from its creation until `end`. In between, the harness must be polled."""

    def __init__(self, harness: Harness, name: str, rate: float) -> None:
        self._harness, self._topic = harness, f"{harness.topic}.{name}"
        harness.site.create_topic(self._topic)
        self._reader = harness.read(self._topic)
        job = replace(harness.job(int(rate * _LASTS_S), _SOON), topic=self._topic)
        self._sender = harness.spawn(send_steadily, job, rate)

    def end(self) -> Tally:
        """Stop sending, and wait for the remaining deliveries."""
        self._sender.stop()
        sent = self._sender.result()
        received = self._harness.finish(
            self._reader, sent.accepted, float(sent.dues.max(initial=0)), "reading the rest"
        )
        return tally(sent, received)


def during(counts: Tally, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """A mask of the deliveries that were due within one of the spans."""
    due = counts.at_ms - counts.lateness_ms
    inside = np.zeros(len(due), np.bool_)
    for span in spans:
        inside |= (due >= span.began_ms) & (due <= span.ended_ms)
    return inside


def lateness_figures(prefix: str, text: str, sample: npt.NDArray[np.float64]) -> tuple[Figure, ...]:
    """Figures for p50, p99 and max, ms."""
    values = spread(sample)
    return tuple(
        Figure(f"{prefix}_{key}", f"{text} {key}", getattr(values, key), "ms") for key in ("p50", "p99", "max")
    )


def ratio(sample: npt.NDArray[np.float64], usual: npt.NDArray[np.float64]) -> float:
    """The p99 of one sample divided by the p99 of another; NaN if there is no other sample."""
    sample_spread, usual_spread = spread(sample), spread(usual)
    return sample_spread.p99 / usual_spread.p99 if usual_spread.p99 > 0 else float("nan")


def joined(*tallies: Tally) -> Tally:
    """Several streams' tallies as one."""

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in tallies)

    return Tally(
        **{
            name: total(name) for name in ("accepted", "received", "lost", "duplicate", "early", "unasked", "wrong_due")
        },
        lateness_ms=np.concatenate([each.lateness_ms for each in tallies]),
        at_ms=np.concatenate([each.at_ms for each in tallies]),
    )
