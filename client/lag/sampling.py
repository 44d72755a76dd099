"""Estimates how many messages of a large backlog pass a filter from a random sample. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from duemq.model.errors import Rejected

_Z = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations
_FEWEST = 30  # offsets per partition

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much to read to count the messages of one topic that a group has not read. Raises Rejected `bad_option`."""

    exact: int = 10_000
    """Up to this many offsets, all are read, and the count is exact."""
    offsets: int = 1_000
    """Above that, this many random ones."""
    max_bytes: int = 32 << 20
    """Reading ends after this. The error is larger then."""

    def __post_init__(self) -> None:
        for name, lowest in (("exact", 0), ("offsets", 1), ("max_bytes", 1)):
            if getattr(self, name) < lowest:
                raise Rejected("bad_option", f"{name} is {getattr(self, name)}; it must be {lowest} or more", name)


@dataclass(frozen=True, slots=True)
class Estimate:
    """`messages`: the estimate, with 95 % certainty between `low` and `high`. `sample`: number of offsets read."""

    messages: int
    low: int
    high: int
    sample: int
    exact: bool

    @property
    def error(self) -> int:
        """The larger half of the interval; 0 for an exact count."""
        return max(self.high - self.messages, self.messages - self.low)


def counted(messages: int, offsets: int) -> Estimate:
    """Estimate for a backlog that was read completely."""
    return Estimate(messages, messages, messages, offsets, True)


def wilson(hits: int, sample: int, offsets: int) -> Estimate:
    """Of `offsets`, `sample` different random ones were read, and `hits` of these held a matching message.

    The interval is that of E. B. Wilson (1927), which is also valid for a share near 0 or 1.
    """
    if sample == 0:
        return Estimate(0, 0, offsets, 0, False)
    if sample >= offsets:
        return counted(hits, offsets)
    share, z2 = hits / sample, _Z * _Z
    middle = (share + z2 / (2 * sample)) / (1 + z2 / sample)
    half = _Z * math.sqrt(share * (1 - share) / sample + z2 / (4 * sample * sample)) / (1 + z2 / sample)
    # The messages found are certain, whatever the rest is.
    low = max(math.floor((middle - half) * offsets), hits)
    high = min(math.ceil((middle + half) * offsets), offsets - (sample - hits))
    return Estimate(round(share * offsets), low, high, sample, False)


def total_of(estimates: Iterable[Estimate]) -> Estimate:
    """Estimate of a sum. The errors are independent, so their squares add up (Newcombe's variance estimates)."""
    each = list(estimates)
    messages = sum(one.messages for one in each)
    below = math.sqrt(sum((one.messages - one.low) ** 2 for one in each))
    above = math.sqrt(sum((one.high - one.messages) ** 2 for one in each))
    return Estimate(
        messages, messages - math.ceil(below), messages + math.ceil(above), sum(one.sample for one in each),
        all(one.exact for one in each),
    )  # fmt: skip


def draws(spans: Mapping[P, tuple[int, int]], offsets: int, rng: random.Random) -> dict[P, list[int]]:
    """Different random offsets of each span, in random order: about `offsets` in all, from each in proportion."""
    sizes = {part: end - start for part, (start, end) in spans.items()}
    whole = sum(sizes.values())
    return {
        part: rng.sample(range(*spans[part]), min(size, max(round(offsets * size / whole), _FEWEST)))
        for part, size in sizes.items()
    }
