"""The steps of `duemq bench relay`, and what duemq has set itself as targets."""

from collections.abc import Mapping

from duemq.bench.plans.plan import Step
from duemq.bench.relay.systems import place
from duemq.bench.report.figures import Target

_SETTINGS: Mapping[str, str] = {"relay.private_networks": "127.0.0.0/8"}
_LATE_MS = {1_000: 60, 2_000: 40}  # p99 by rate
_AT_ONCE = {"http": 6_000}
_AT_ONCE_BROKERS = 15_000


def relay_step(to: str, destination: str | None, count: int, rates: tuple[int, ...], seconds: int) -> Step:
    """To one destination."""
    targets = {f"{rate}_p99": Target(_LATE_MS[rate]) for rate in rates if rate in _LATE_MS}
    targets["burst_rate"] = Target(_AT_ONCE.get(to, _AT_ONCE_BROKERS), at_least=True)
    title = f"relay to {to if destination is None else place(destination)}: {count:,} due at once"
    parameters = {"to": to, "destination": destination, "count": count, "rates": rates, "seconds": seconds}
    return Step("relay", title, parameters, targets, settings=_SETTINGS)


def beside_bad_step(endpoints: int, rate: int, seconds: int) -> Step:
    """To very many HTTP destinations, three of which are bad."""
    title = f"relay to {endpoints} endpoints, {rate:,} messages/s in all: without and beside three bad ones"
    parameters = {"endpoints": endpoints, "rate": rate, "seconds": seconds}
    return Step("relay-beside-bad", title, parameters, settings=_SETTINGS)
