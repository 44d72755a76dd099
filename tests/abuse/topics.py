"""Messages to ever new topics."""

from __future__ import annotations

import http.client
import json
import time
from random import Random
from threading import Event

from tests.abuse.base import Abuser


class NewTopics(Abuser):
    """A message to a new topic each, a thousand a minute, due within five seconds."""

    def run(self, stop: Event) -> None:
        chance = Random(self.seed)
        every_s = 60 / self.sizes.topics_per_minute
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        began, number = time.monotonic(), 0
        while not stop.wait(max(began + number * every_s - time.monotonic(), 0)):
            message = {
                "topic": f"abuse.{self.seed}.{number}", "payload": "x", "deliver_after": chance.randrange(100, 5_000),
            }  # fmt: skip
            self.counts["tried"] += 1
            number += 1
            try:
                connection.request("POST", "/v1/messages", json.dumps(message), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.counts[str(answer.status)] += 1
            except (OSError, http.client.HTTPException):
                self.counts["cut off"] += 1
                connection.close()
        connection.close()
