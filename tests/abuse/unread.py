"""Clients that ask for records and never read the answer."""

from __future__ import annotations

from threading import Event

from tests.abuse.base import FAT_TOPIC, Abuser
from tests.abuse.crowd import Crowd


class EventStreams(Abuser):
    """Every other one follows the honest client's topic, which grows; the others one that is full already."""

    def run(self, stop: Event) -> None:
        asked = [
            self.head("GET", f"/v1/topics/{topic}/records", "Accept: text/event-stream")
            for topic in (FAT_TOPIC, self.topic)
        ]
        Crowd(self, self.sizes.streams, lambda number: asked[number % 2]).run(stop)


class LongPolls(Abuser):
    """Ask for the largest page there is."""

    def run(self, stop: Event) -> None:
        asked = self.head("GET", f"/v1/topics/{FAT_TOPIC}/records?max=10000&wait=30s")
        Crowd(self, self.sizes.polls, lambda _: asked).run(stop)
