"""The log through which proxies get the relays' figures. It is used only on Kafka; otherwise proxy and relay are in one
process.

Each relay appends a destination's figures when they change, and from time to time if they do not change. Figures expire
after a minute, so each append trims older ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import orjson

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.relays.figures import RelayFigures, merged
from duemq.cluster.topics.internal_topics import RELAYS
from duemq.model.errors import DuemqError
from duemq.model.messages.record import StoredRecord, pack_record, unpack_record

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_UNCHANGED_S, _FRESH_S = 20.0, 60.0
_TRIM_S = 60.0
_READ, _QUIET_S = 500, 30.0
_STOP_S = 2.0
_FAILURES = 5  # per destination, because a failure takes up to 600 bytes


class RelayFiguresPublisher:
    """`name`: this relay's name. `measure` returns the figures for each destination that the relay serves. `clock`
    returns epoch ms."""

    def __init__(
        self,
        bus: Callable[[], Bus],
        name: str,
        measure: Callable[[], Mapping[str, RelayFigures]],
        clock: Callable[[], int],
    ) -> None:
        self._bus, self._name, self._measure, self._clock = bus, name, measure, clock
        self._last: dict[str, tuple[RelayFigures, float]] = {}  # figures, and when appended (loop's clock)

    async def run(self) -> None:
        """Append figures until cancelled; then withdraw them, if the log is available."""
        made, trimmed_at, now = False, 0.0, asyncio.get_running_loop().time

        async def turn() -> None:
            nonlocal made, trimmed_at
            if not made:
                await self._bus().create_log(RELAYS, 1, vital=False)
                made = True
            await self._publish(self._measure(), now())
            if now() - trimmed_at >= _TRIM_S:
                trimmed_at = now()
                await self._trim()

        try:
            await Loop("own figures", turn, every_s=_EVERY_S, expected=(DuemqError,), level=logging.DEBUG).run()
        finally:
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._publish({}, now())
            except (TimeoutError, DuemqError):
                log.debug("figures cannot be withdrawn: they expire in a minute", extra={"action": "figures"})

    async def _publish(self, figures: Mapping[str, RelayFigures], now: float) -> None:
        frames = []
        for name, each in figures.items():
            last = self._last.get(name)
            if last is None or last[0] != each or now - last[1] >= _UNCHANGED_S:
                frames.append(self._frame(name, each))
                self._last[name] = each, now
        for name in self._last.keys() - figures.keys():
            frames.append(self._frame(name, None))
            del self._last[name]
        if frames:
            await self._bus().append({(RELAYS, 0): frames})

    def _frame(self, destination: str, figures: RelayFigures | None) -> bytes:
        shortened = figures and figures._replace(last_failures=figures.last_failures[:_FAILURES])
        document = {"figures": None if shortened is None else shortened._asdict()}
        return pack_record(None, (), orjson.dumps(document | {"relay": self._name, "destination": destination}))

    async def _trim(self) -> None:
        await self._bus().trim_older_than(RELAYS, self._clock() - int(2 * _FRESH_S * 1000))


class RelayFiguresReader:
    """Follows the log while `run` runs. `clock` returns epoch ms."""

    def __init__(self, bus: Callable[[], Bus], clock: Callable[[], int]) -> None:
        self._bus, self._clock = bus, clock
        self._figures: dict[str, dict[str, tuple[int, RelayFigures]]] = {}  # by destination and relay; with the time
        self._next = 0

    def of(self, destination: str) -> RelayFigures | None:
        """The combined figures of all relays that serve a destination; None if there are none."""
        return merged([each for _, each in self._fresh(self._figures.get(destination, {})).values()])

    def _fresh(self, by_relay: Mapping[str, tuple[int, RelayFigures]]) -> dict[str, tuple[int, RelayFigures]]:
        since = self._clock() - int(_FRESH_S * 1000)
        return {relay: each for relay, each in by_relay.items() if each[0] >= since}

    def shown(self, destination: str) -> dict[str, Any] | None:
        """The same as JSON-able values."""
        figures = self.of(destination)
        return None if figures is None else figures.shown()

    async def run(self) -> None:
        await Loop("figures of relays", self._follow, expected=(DuemqError,), level=logging.DEBUG).run()

    async def _follow(self) -> float:
        bus = self._bus()
        with closing(bus.subscribe(RELAYS, 0)) as subscription:
            records = await bus.read(RELAYS, 0, self._next, _READ)
            for record in records:
                self._apply(record)
                self._next = record.offset + 1
            self._drop_old()
            if not records and await bus.end_offset(RELAYS, 0) < self._next:
                self._next = 0  # the topic was recreated
            elif not records:
                await subscription.wait(_QUIET_S)
        return 0.0

    def _apply(self, record: StoredRecord) -> None:
        try:
            document = orjson.loads(unpack_record(record.frame).payload)
            by_relay = self._figures.setdefault(document["destination"], {})
            relay, figures = document["relay"], document["figures"]
            if figures is None:
                by_relay.pop(relay, None)
            else:
                by_relay[relay] = record.timestamp, RelayFigures.from_json(figures)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.debug("figures of a relay cannot be read: %s", error, extra={"action": "figures"})

    def _drop_old(self) -> None:
        self._figures = {name: fresh for name, by_relay in self._figures.items() if (fresh := self._fresh(by_relay))}
