"""The log of a consumer inside a server: reads topics from the server's bus, and schedules messages that are sent
back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.client.consumer.base import PartitionsMoved
from duemq.client.consumer.letter import AT_ONCE, Pairs, letter_of
from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import SIZE
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.message import Draft
from duemq.model.messages.names import of_return
from duemq.model.messages.record import pack_headers
from duemq.relay.embedded.source import EmbeddedSource

log = logging.getLogger(__name__)

_PASSING = ("unavailable", "outcome_unknown")


class Scheduler(Protocol):
    """Schedules messages: `Gateway.send` in `proxy/gateway/base.py`."""

    async def __call__(self, drafts: Sequence[Draft]) -> Sequence[Any]: ...


class EmbeddedLog:
    """See `ConsumerLog`. `clock`: returns epoch ms. `log_id`: the same id for all topics; see `MessageSource`."""

    def __init__(
        self, group: str, bus: Callable[[], Bus], schedule: Scheduler, clock: Callable[[], int], log_id: str = ""
    ) -> None:
        self.group, self._bus, self._schedule, self._clock = group, bus, schedule, clock
        self._log_id = log_id

    async def open(
        self,
        topics: Mapping[str, str],
        retry: Sequence[str],
        gained: PartitionsMoved,
        lost: PartitionsMoved,
        report_mismatches: Callable[[Sequence[Any]], None],
    ) -> EmbeddedSource:
        return EmbeddedSource(self._bus, self.group, [*sorted(topics), *retry], gained, lost, self._log_id)

    async def send_back(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        """See `ConsumerLog`. The message's name is made from its position, so a message that is sent back twice, before
        and after a crash, arrives only once. No other message can have that name; if one did, this message would become
        a dead letter."""
        refused = await self._send(self._draft(message, to, error, message.value))
        if refused is None:
            return to
        dead = DeadLetter(refused)
        log.warning(
            "%s: %r, of %d bytes, cannot be sent back and becomes a dead letter: %s", self.group, message,
            len(message.payload), refused, extra={"action": "refused", "group": self.group},
        )  # fmt: skip
        size: Pairs = [(SIZE, b"%d" % len(message.payload))]
        for payload in (message.value, message.value and b""):
            if await self._send(self._draft(message, dead, error, payload, size)) is None:
                return dead
        raise Rejected("bad_field", f"{message!r} can neither be sent back nor become a dead letter")

    def _draft(
        self, message: Message, to: Wait | DeadLetter, error: str, payload: bytes | None, more: Pairs | None = None
    ) -> Draft:
        letter = letter_of(self.group, message, to, error)
        now = self._clock()
        name, fingerprint = of_return(letter.name, letter.topic.encode(), message.key, payload)
        count, headers = pack_headers([*letter.headers, *(more or ())])
        due = now if letter.wait == AT_ONCE else now + letter.wait.ms(now)
        return Draft(letter.topic, payload, due, message.key, count, headers, (), 0, name, fingerprint)

    async def _send(self, draft: Draft) -> str | None:
        """Schedule a message. Returns None once the log has the message, or the reason why the log will never accept
        it."""
        refused: str | None = None

        async def turn() -> None:
            nonlocal refused
            (receipt,) = await self._schedule([draft])
            if isinstance(receipt, Rejected):
                if receipt.code in _PASSING:
                    raise Unavailable(receipt.detail)
                refused = receipt.code
            elif receipt.conflict:
                refused = "name_conflict"

        await Loop("return", turn, self.group, ends_on=(Exception,), longest_s=10.0).run()
        return refused

    async def renew(self, topics: Sequence[str]) -> None:
        """Does nothing: cursors do not expire."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""
