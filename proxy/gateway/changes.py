"""Changes: cancels, moves, deliver-nows and redrives are appended to the log, and the ledger has their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat

from duemq.bus.base import AppendResults, Batches
from duemq.cluster.backend import Backend
from duemq.cluster.shards.progress import Progress
from duemq.cluster.shards.shard_reader import MessageState
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import OutcomeUnknown, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, Terms, change_frame
from duemq.model.messages.plain import change_by_name
from duemq.model.messages.record import Partition
from duemq.model.topics.rules import CONSUMER
from duemq.proxy.gateway.base import ChangeOutcome
from duemq.proxy.gateway.message_resolver import Address, MessageResolver, NamedAddress
from duemq.proxy.gateway.name_lookups import NameLookups

_WITH_TIME = 16  # up to this many changes, end times are looked up
_ENDED = frozenset((Answer.DELIVERED, Answer.CANCELLED_BEFORE, Answer.DEAD))


class MessageChanges:
    """`append` makes commands durable; `answer_s`: how long to wait for a shard's answer."""

    def __init__(
        self,
        backend: Backend,
        addresses: MessageResolver,
        append: Callable[[Batches], Awaitable[AppendResults]],
        answer_s: float,
    ) -> None:
        self._backend, self._addresses, self._append, self._answer_s = backend, addresses, append, answer_s
        self._names = NameLookups(backend)

    async def make(
        self,
        kind: int,
        refs: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        """See `Gateway.change`."""
        dues = repeat(due) if isinstance(due, int) else due
        targets = await self._resolve(refs, by_name=terms is None)
        batches: dict[Partition, list[bytes]] = {}
        positions: list[int] = []
        for one, at in zip(targets, dues, strict=False):
            if isinstance(one, Address):
                batch = batches.setdefault((BUFFER, one.shard), [])
                positions.append(len(batch))
                batch.append(change_frame(kind, one.first_key, at, terms, by))
            elif isinstance(one, NamedAddress):
                batch = batches.setdefault((BUFFER, one.shard), [])
                positions.append(len(batch))
                batch.append(change_by_name(kind, one.ref, at, by))
            else:
                positions.append(-1)
        results: AppendResults = {}
        progress_of: dict[int, Progress] = {}
        holders: dict[str, Address] = {}
        if batches:
            progress_of |= {shard: self._backend.progress(shard) for _, shard in batches}
            for progress in progress_of.values():
                progress.check()
            results = await self._append(batches)
            waits = [
                applied_in_time(progress_of[shard], results[topic, shard].offset(len(batch) - 1), self._answer_s)
                for (topic, shard), batch in batches.items()
            ]
            if len(waits) == 1:
                await waits[0]
            else:
                await asyncio.gather(*waits)
            untold: dict[int, list[NamedAddress]] = {}  # an older master, or one change of very many
            for one, position in zip(targets, positions, strict=True):
                if not isinstance(one, NamedAddress):
                    continue
                answered = progress_of[one.shard].answer(results[BUFFER, one.shard].offset(position))
                if answered is not None and answered.first_key is not None:
                    holders[one.ref] = self._addresses.of_key(one.shard, answered.first_key)
                elif answered is not None and answered.answer is not Answer.UNKNOWN:
                    untold.setdefault(one.shard, []).append(one)
            for shard, names in untold.items():
                last = results[BUFFER, shard].offset(len(batches[BUFFER, shard]) - 1)
                holders |= await self._holders(shard, names, last)
        outcomes: list[ChangeOutcome] = []
        ended: dict[int, list[tuple[int, bytes, int]]] = {}  # by shard: places in `outcomes`, first keys, offsets
        for ref, one, position in zip(refs, targets, positions, strict=True):
            if one is None:
                outcomes.append(ChangeOutcome(ref, Answer.UNKNOWN))
            elif isinstance(one, MessageState):
                outcomes.append(ChangeOutcome(one.id, Answer.DELIVERED, one.delivered_at))
            else:
                message = one if isinstance(one, Address) else holders.get(ref)
                id_ = ref if message is None else message.id
                offset = results[BUFFER, one.shard].offset(position)
                answered = progress_of[one.shard].answer(offset)
                if answered is None:
                    outcome = ChangeOutcome(id_, None)
                elif answered.answer is Answer.OK:
                    outcome = ChangeOutcome(id_, Answer.OK, answered.at if kind == CANCEL else 0)
                else:
                    outcome = ChangeOutcome(id_, answered.answer)
                    if answered.answer in _ENDED and message is not None:
                        ended.setdefault(one.shard, []).append((len(outcomes), message.first_key, offset))
                outcomes.append(outcome)
        if times or len(refs) <= _WITH_TIME:
            for shard, places in ended.items():
                keys, last = [key for _, key, _ in places], max(offset for _, _, offset in places)
                try:
                    end_times = await self._backend.reader.when_ended(shard, keys, last)
                except Unavailable:
                    continue  # the answers are known, and some of the changes may be made
                for (place, _, _), at in zip(places, end_times, strict=True):
                    outcomes[place] = outcomes[place]._replace(at=at)
        return outcomes

    async def _resolve(
        self, refs: Sequence[str], *, by_name: bool
    ) -> list[Address | NamedAddress | MessageState | None]:
        """The address of each message. A command `by_name` goes to the shard of the name, which looks it up itself."""
        by_id, named = self._addresses.by_id, self._addresses.by_name
        targets: list[Address | NamedAddress | MessageState | None] = [
            # An older node finds any other name malformed, and stops its replica at the command.
            by_id(ref) or (named(ref) if by_name and CONSUMER.fullmatch(ref) else None)
            for ref in refs
        ]
        unresolved = [at for at, one in enumerate(targets) if one is None]
        try:
            looked_up = await self._addresses.find_each([refs[at] for at in unresolved])
        except OutcomeUnknown as error:  # of a lookup, which changes nothing
            raise Unavailable(error.detail) from error
        for at, one in zip(unresolved, looked_up, strict=True):
            targets[at] = one
        return targets

    async def _holders(self, shard: int, names: Sequence[NamedAddress], offset: int) -> dict[str, Address]:
        """The messages that have these names once the command at `offset` is applied.

        Only for the answers: if a lookup fails, the answer has the name instead of the id.
        """
        try:
            messages = await self._names.messages(shard, [name.name for name in names], offset)
        except (Unavailable, OutcomeUnknown):
            return {}
        holders: dict[str, Address] = {}
        for name in names:
            message = messages.get(name.name)
            if message is not None and (address := self._addresses.by_id(message.state.id)) is not None:
                holders[name.ref] = address
        return holders


async def applied_in_time(progress: Progress, offset: int, answer_s: float) -> bool:
    """Wait until a shard has applied a command that is already in the log, and so can no longer be refused."""
    try:
        return await progress.wait_until_applied(offset, answer_s)
    except Unavailable:
        return False
