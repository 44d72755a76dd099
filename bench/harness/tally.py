"""Compares the messages that were sent with those that were read. Every message is counted."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import ACCEPTED, REJECTED, SentMessages
from duemq.model.messages.ids import peek

QUANTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class LatenessSpread:
    """Quantiles of a sample, in the sample's unit. Each quantile is a value in the sample, never interpolated."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcome of the messages, and the lateness of delivered messages.

    `lateness_ms` and `at_ms`: lateness and time (epoch ms) of each message's first delivery, in reading order. The
    other fields are counts. `lost`: accepted but never read. `duplicate`: read again after the first time. `early`:
    read before they were due. `unasked`: read although they were refused or never sent. `wrong_due`: read with a due
    time that was not requested.
    """

    accepted: int
    received: int
    lost: int
    duplicate: int
    early: int
    unasked: int
    wrong_due: int
    lateness_ms: npt.NDArray[np.float64]
    at_ms: npt.NDArray[np.float64]


def spread(sample: npt.NDArray[np.float64]) -> LatenessSpread:
    """p50, p90, p99, p99.9 and max; all NaN for an empty sample."""
    if not len(sample):
        return LatenessSpread(*[float("nan")] * 5)
    p50, p90, p99, p999 = np.percentile(sample, QUANTILES, method="higher").tolist()
    return LatenessSpread(p50, p90, p99, p999, float(sample.max()))


def tally(sent: SentMessages, received: ReceivedRecords) -> Tally:
    """Compare by sequence number. If it is unknown whether a message was accepted, it may be delivered or not, but only
    once."""
    ours = (received.seq >= 0) & (received.seq < len(sent.dues))
    seq, due, at = received.seq[ours], received.due[ours], received.at[ours]
    times = np.bincount(seq, minlength=len(sent.dues))
    requested_due = sent.dues[seq]
    first = np.sort(np.unique(seq, return_index=True)[1])
    return Tally(
        accepted=int(np.count_nonzero(sent.outcome == ACCEPTED)),
        received=len(received.seq),
        lost=int(np.count_nonzero((sent.outcome == ACCEPTED) & (times == 0))),
        duplicate=int(np.maximum(times - 1, 0).sum()),
        early=int(np.count_nonzero(at < requested_due)),
        unasked=int(np.count_nonzero(~ours)) + int(np.count_nonzero(sent.outcome[seq] == REJECTED)),
        wrong_due=int(np.count_nonzero(due != requested_due)),
        lateness_ms=at[first] - requested_due[first],
        at_ms=at[first],
    )


def out_of_order(received: ReceivedRecords) -> int:
    """The number of records that come after a record from the same shard, on the same partition, with a higher key
    (due, offset, row)."""
    highest: dict[tuple[int, int], tuple[int, int, int]] = {}
    wrong = 0
    for partition, text in zip(received.partition.tolist(), received.ids, strict=True):
        shard, due, offset, row = peek(text)
        key = (due, offset, row)
        if key < highest.get((partition, shard), key):
            wrong += 1
        else:
            highest[partition, shard] = key
    return wrong
