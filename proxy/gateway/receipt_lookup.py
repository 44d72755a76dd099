"""Named messages: the shard decides whether a name is new, and a repeat gets the receipt of the first message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from duemq.cluster.backend import Backend
from duemq.cluster.shards.shard_reader import NamedMessage
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import Draft
from duemq.model.messages.names import Name, shard_of_name
from duemq.proxy.gateway.base import Receipt

_REPEAT = "send it again under the same name"
_TOGETHER = 5_000  # names in one request to a node, which accepts 4 MiB (`delay/api/internal_http.py`)


class AppendedNames(NamedTuple):
    """A named draft in the log, with the receipt to return if its name is new."""

    draft: Draft
    receipt: Receipt
    shard: int
    offset: int


class ReceiptLookup:
    """Finds the receipts for names. `answer_s`: how long to wait for a shard's answer."""

    def __init__(self, backend: Backend, answer_s: float) -> None:
        self._backend, self._answer_s = backend, answer_s

    async def resolve(self, appended: Sequence[AppendedNames]) -> list[Receipt | Rejected]:
        """The outcome of each draft. Raises nothing: an unknown outcome is answered with `outcome_unknown`."""
        shards = _by_shard(one.shard for one in appended)
        parts = await asyncio.gather(*(self._resolve(shard, [appended[at] for at in ats]) for shard, ats in shards))
        answers: dict[int, Receipt | Rejected] = {}
        for (_, ats), part in zip(shards, parts, strict=True):
            answers.update(zip(ats, part, strict=True))
        return [answers[at] for at in range(len(appended))]

    async def _resolve(self, shard: int, appended: Sequence[AppendedNames]) -> list[Receipt | Rejected]:
        """The outcomes of a shard's drafts, which must be in the order of their offsets."""
        try:
            progress = self._backend.progress(shard)
            await progress.wait_until_applied(appended[-1].offset, self._answer_s)
        except Unavailable as error:
            return [_unknown(error.detail)] * len(appended)
        answers: list[Receipt | Rejected] = []
        looked: dict[int, Answer] = {}  # by place: the answers for which the message must be looked up
        for place, one in enumerate(appended):
            answered = progress.answer(one.offset)
            if answered is None:
                is_forgotten = one.offset < progress.applied
                answers.append(_unknown(f"the answer to this name is {'no longer' if is_forgotten else 'not'} known"))
                continue
            answers.append(one.receipt)
            if answered.answer is not Answer.ACCEPTED or one.draft.due is None:
                looked[place] = answered.answer
        if not looked:
            return answers
        names, last = [appended[place].draft.name for place in looked], appended[max(looked)].offset
        missing = Rejected(Unavailable.code, "the first message of this name was just forgotten: send it again")
        firsts: list[NamedMessage | None] = [None] * len(names)
        try:
            firsts = await self._backend.reader.messages_by_name(shard, names, last)
        except Unavailable as error:
            missing = _unknown(f"the first message of this name cannot be shown: {error.detail}")
        for (place, answer), first in zip(looked.items(), firsts, strict=True):
            if answer is Answer.ACCEPTED:
                # The message is accepted, even if the lookup found nothing. It may not be delivered yet, because its
                # topic refused it or a clock is slow, so the status comes from the lookup.
                status = "scheduled" if first is None else first.state.status
                answers[place] = appended[place].receipt._replace(status=status)
            else:
                conflict = answer is Answer.CONFLICT
                answers[place] = missing if first is None else receipt_of(first, conflict=conflict)
        return answers

    async def look_up(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        """See `Gateway.named`. Raises Unavailable."""
        by_shard = _by_shard(shard_of_name(name, self._backend.shards) for name, _ in names)
        shards = [(shard, ats[at : at + _TOGETHER]) for shard, ats in by_shard for at in range(0, len(ats), _TOGETHER)]
        reader = self._backend.reader
        parts = await asyncio.gather(
            *(reader.messages_by_name(shard, [names[at][0] for at in ats]) for shard, ats in shards)
        )
        receipts: list[Receipt | None] = [None] * len(names)
        for (_, ats), part in zip(shards, parts, strict=True):
            for at, first in zip(ats, part, strict=True):
                if first is not None:
                    receipts[at] = receipt_of(first, conflict=first.fingerprint != names[at][1])
        return receipts


def receipt_of(first: NamedMessage, *, conflict: bool) -> Receipt:
    """The receipt for a repeat: the receipt of the first message with that name."""
    state = first.state
    return Receipt(state.id, state.status, state.topic, state.due, True, conflict)


def _by_shard(shards: Iterable[int]) -> list[tuple[int, list[int]]]:
    """Each shard, with its places in `shards`."""
    places = sorted((shard, at) for at, shard in enumerate(shards))
    return [(shard, [at for _, at in group]) for shard, group in groupby(places, key=lambda place: place[0])]


def _unknown(reason: str) -> Rejected:
    return Rejected(OutcomeUnknown.code, f"{reason}: {_REPEAT}")
