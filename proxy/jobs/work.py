"""Does the work of a job on its entries, by commands to shards. See `TopicWork` for jobs on the records of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from duemq.model.log.job import KINDS, OF_THE_DEAD, Job, Order
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import MOVES, REDRIVE, Terms
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.query import MAX_LIMIT, instant_in, read_filter

Outcome = tuple[str, str]
"""The outcome of an entry (`done`, `skipped` or `failed`), and the reason."""

DONE: Final[Outcome] = ("done", "")
_OUTCOMES: Final = {
    Answer.OK: DONE,
    Answer.REPEATED: DONE,  # an earlier attempt at this step made the change, but its answer was lost
    Answer.CHANGED_BEFORE: ("skipped", "changed_before"),
    Answer.DELIVERED: ("skipped", "already_delivered"),
    Answer.CANCELLED_BEFORE: ("skipped", "already_cancelled"),
    Answer.DEAD: ("skipped", "already_dead"),
    Answer.PURGED: ("skipped", "already_purged"),
    Answer.NOT_DEAD: ("skipped", "not_dead"),
    Answer.UNKNOWN: ("skipped", "unknown_message"),
    Answer.MALFORMED: ("failed", "not_supported"),  # the answer from a node of an older version
}


class PlanPage(NamedTuple):
    """Entries of a plan, in order. `cursor`: where the next page begins; None after the last page."""

    entries: list[str]
    cursor: str | None


class JobWork(Protocol):
    async def plan(self, order: Order, created_at: int, cursor: str | None) -> PlanPage:
        """A page of the entries that matched when the job was created (epoch ms). Raises Unavailable."""
        ...

    async def do(self, job: Job, step: int, entries: Sequence[str]) -> list[Outcome | None]:
        """Carry out the job for some entries of a step. An unknown outcome is None; it does no harm to repeat the
        entry.

        Raises Unavailable, even if some of the work may have been done.
        """
        ...


class MessageWork:
    """The work on messages in shards. An entry is an id; for a move by a shift, the new due time (ms) follows it.

    Each command has the tag of its step, by which a shard applies it only once. `most_redrives`: how often a message
    may be redriven; 0: unlimited.
    """

    def __init__(self, gateway: Gateway, most_redrives: int) -> None:
        self._gateway, self._most_redrives = gateway, most_redrives

    async def plan(self, order: Order, created_at: int, cursor: str | None) -> PlanPage:
        """See `JobWork`. Messages that die after the job's creation are not included."""
        of_the_dead = order.kind in OF_THE_DEAD
        fields = {name: value for name, value in order.filter.items() if name not in OWN_FIELDS}
        query = replace(
            read_filter(fields, "bad_field", judged=True), status="dead" if of_the_dead else "scheduled",
            limit=MAX_LIMIT, cursor=cursor, caller=order.caller or "",
        )  # fmt: skip
        page = await self._gateway.find(query)
        if not of_the_dead:
            shift = order.shift
            entries = [
                f"{state.id} {min(max(state.due + shift, 0), LAST_MS)}" if shift else state.id
                for state in page.messages
            ]
            return PlanPage(entries, page.cursor)
        since, until = dead_range(order.filter, created_at, judged=True)
        reason = order.filter.get("reason")
        return PlanPage(
            [state.id for state in page.messages if since <= state.dead_at < until and reason in (None, state.reason)],
            page.cursor,
        )

    async def do(self, job: Job, step: int, entries: Sequence[str]) -> list[Outcome | None]:
        order, kind = job.order, KINDS[job.order.kind]
        due: int | list[int] = order.due
        refs = list(entries)
        if kind in MOVES and not order.due:
            refs, due = [entry[: entry.index(" ")] for entry in entries], [int(entry.split()[1]) for entry in entries]
        most = self._most_redrives if kind == REDRIVE else 0
        terms = Terms(job.tag(step), most, order.topic)
        outcomes = await self._gateway.change(kind, refs, due, terms=terms)
        # For a redrive, EXHAUSTED means that none is left; for a move, that the message would be due after its expiry.
        known = _OUTCOMES | {Answer.EXHAUSTED: ("failed", "redrives_exhausted" if kind == REDRIVE else "bad_time")}
        return [None if outcome.answer is None else known[outcome.answer] for outcome in outcomes]


OWN_FIELDS: Final = ("dead_from", "dead_to", "reason", "ids")
"""Fields of a filter that a search does not support."""


def dead_range(fields: Any, created_at: int, *, judged: bool = False) -> tuple[int, int]:
    """The range of times of death (epoch ms), [start, end). `judged`: see `parse_instant`."""
    since, until = (instant_in(fields, name, judged) for name in ("dead_from", "dead_to"))
    return since or 0, min(LAST_MS if until is None else until, created_at + 1)
