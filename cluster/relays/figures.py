"""The relays' figures for one destination. Pure functions and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from duemq.cluster.figures import known_fields

BUCKETS_MS: Final = (
    1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 70, 80, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000,
    60_000, 300_000,
)  # fmt: skip
"""Upper bounds of a histogram of times (ms). They are dense in the range of a healthy destination."""
_MAX_FAILURES = 20
_MAX_STATUSES = 10


class RelayFigures(NamedTuple):
    """The figures for one destination, from one or several relays, since these started to serve it.

    `relays`: the relays' names. `lag`: the number of messages that are not finished; None while unknown. `in_hand`:
    messages that were read but are not finished; `oldest_at`: when the oldest of these was appended to its topic, epoch
    ms. `in_flight`: messages sent without an answer yet; `limit`: the maximum. `rate`: limit of messages/s, 0 = none.
    `dead`: dead letters. `results`, `statuses`: the number of answers by result and by status. `lateness`, `took`:
    accepted messages by lateness and by duration, one count more than `BUCKETS_MS`. `last_accepted_at`: epoch ms.
    `last_failures`: failed attempts, newest first. `trouble`: why no message is sent now.
    """

    relays: tuple[str, ...]
    lag: int | None = None
    in_flight: int = 0
    limit: int = 0
    in_hand: int = 0
    dead: int = 0
    results: Mapping[str, int] = {}
    statuses: Mapping[str, int] = {}
    lateness: tuple[int, ...] = ()
    took: tuple[int, ...] = ()
    last_accepted_at: int | None = None
    last_failures: tuple[Mapping[str, Any], ...] = ()
    trouble: str = ""
    oldest_at: int | None = None
    rate: int = 0

    def shown(self) -> dict[str, Any]:
        """The figures as JSON-able values."""
        document = self._asdict()
        for name in ("lateness", "took"):
            counts = document.pop(name)
            document[f"{name}_ms"] = {f"p{share}": quantile(counts, share / 100) for share in (50, 99)}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Fields that only another version has are left out. Raises ValueError."""
        try:
            return cls(**known_fields(cls._fields, document))
        except TypeError as error:
            raise ValueError(f"these are no figures of a relay: {error}") from error


def merged(figures: Sequence[RelayFigures]) -> RelayFigures | None:
    """The figures of several relays combined; None if there are none."""
    if not figures:
        return None
    lags = [each.lag for each in figures]
    failures = sorted((one for each in figures for one in each.last_failures), key=_at, reverse=True)
    oldest_at = [each.oldest_at for each in figures if each.oldest_at is not None]
    accepted_at = [each.last_accepted_at for each in figures if each.last_accepted_at is not None]
    return RelayFigures(
        relays=tuple(sorted(name for each in figures for name in each.relays)),
        lag=None if None in lags else sum(lag or 0 for lag in lags),
        in_flight=sum(each.in_flight for each in figures),
        limit=sum(each.limit for each in figures),
        in_hand=sum(each.in_hand for each in figures),
        dead=sum(each.dead for each in figures),
        results=_sums(each.results for each in figures),
        statuses=dict(Counter(_sums(each.statuses for each in figures)).most_common(_MAX_STATUSES)),
        lateness=tuple(map(sum, zip(*(each.lateness for each in figures), strict=True))),
        took=tuple(map(sum, zip(*(each.took for each in figures), strict=True))),
        last_accepted_at=max(accepted_at, default=None),
        last_failures=tuple(failures[:_MAX_FAILURES]),
        trouble=next((each.trouble for each in figures if each.trouble), ""),
        oldest_at=min(oldest_at, default=None),
        rate=sum(each.rate for each in figures),
    )


def quantile(counts: Sequence[int], share: float) -> int | None:
    """The upper bound (ms) of the bucket that contains the quantile; None if all counts are 0."""
    total, reached = sum(counts), 0
    for bound, count in zip((*BUCKETS_MS, BUCKETS_MS[-1]), counts, strict=False):
        reached += count
        if total and reached >= share * total:
            return bound
    return None


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums = Counter[str]()
    for each in counts:
        sums.update(each)
    return dict(sums)


def _at(failure: Mapping[str, Any]) -> int:
    return int(failure.get("at", 0))
