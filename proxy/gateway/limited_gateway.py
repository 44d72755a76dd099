"""The gateway restricted to a caller's topics and rate."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.callers.access import Grant
from duemq.model.errors import OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.dead_letters import DESTINATION
from duemq.model.messages.message import Draft, Terms
from duemq.model.messages.names import Name, former_of_caller
from duemq.model.timing import shown
from duemq.proxy.gateway.base import ChangeOutcome, Gateway, MessagePage, OwnTopic, Receipt
from duemq.storage.shard.topic_counts import TopicCount

_PASSED_ON = frozenset(("bus", "topic_lateness", "trouble", "readiness", "stuck", "why_not_ready"))
_NEED_ALL_TOPICS = {
    "import_file": "importing files", "import_files": "importing files", "imports": "looking imports up",
    "import_record": "looking imports up", "imported_ids": "looking imports up", "drain": "draining nodes",
    "resume": "resuming nodes",
}  # fmt: skip


class LimitedGateway:
    """The gateway for one grant. A message in a topic outside the grant is unknown to the caller; sending to such a
    topic is `forbidden`.

    `charge` is called with the number of messages in each send, and of refs in each change. A change by name first
    looks up the id. A caller limited to some topics has its own space of names (`model/messages/names.py`); names from
    an older version of duemq are still found (docs/adr/0057).
    """

    def __init__(self, gateway: Gateway, grant: Grant, charge: Callable[[int], None]) -> None:
        self._gateway, self._grant, self._charge = gateway, grant, charge

    def __getattr__(self, name: str) -> Any:
        """The methods that need no limit by topic, and those only for callers with all topics.

        A new method of `Gateway` is missing here until it is added to one of the two lists, or limited below.
        """
        needs_all = _NEED_ALL_TOPICS.get(name)
        if needs_all is None and name not in _PASSED_ON:
            raise AttributeError(name)
        if needs_all is not None and self._grant.topics:
            raise Rejected("forbidden", f"{needs_all} needs a key for all topics; this one is for some")
        return getattr(self._gateway, name)

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        if not self._grant.topics:
            self._charge(len(drafts))
            return await self._gateway.send(drafts)
        covers = self._grant.covers
        answers: dict[int, Receipt | Rejected] = {
            at: _unsent(draft.topic) for at, draft in enumerate(drafts) if not covers(draft.topic)
        }
        self._charge(len(drafts) - len(answers))
        answers |= await self._known(drafts, answers)
        left = [at for at in range(len(drafts)) if at not in answers]
        sent = await self._gateway.send([drafts[at] for at in left]) if left else ()
        answers |= zip(left, map(self._visible, sent), strict=True)
        return [answers[at] for at in range(len(drafts))]

    async def _known(self, drafts: Sequence[Draft], refused: Container[int]) -> dict[int, Receipt]:
        """The receipts of existing messages that have the names of these drafts, by the draft's place. Raises
        Unavailable."""
        ats = [at for at, draft in enumerate(drafts) if at not in refused and former_of_caller(draft.name)]
        if not ats:
            return {}
        try:
            receipts = await self.named([(drafts[at].name, drafts[at].fingerprint) for at in ats])
        except OutcomeUnknown as error:  # nothing was sent yet
            raise Unavailable(error.detail) from error
        return {at: receipt for at, receipt in zip(ats, receipts, strict=True) if receipt is not None}

    def _visible(self, answer: Receipt | Rejected) -> Receipt | Rejected:
        """The answer without the id of a message that has moved to another caller's topic."""
        if isinstance(answer, Rejected) or self._grant.covers(answer.topic):
            return answer
        return answer._replace(id="", due=0, conflict=True)

    async def named(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        formers = {at: name for at, (own, _) in enumerate(names) if (name := former_of_caller(own))}
        asked = [*names, *((name, names[at][1]) for at, name in formers.items())]
        covers, known = self._grant.covers, await self._gateway.named(asked)
        visible = [one if one is not None and covers(one.topic) else None for one in known]
        receipts = visible[: len(names)]
        for at, former in zip(formers, visible[len(names) :], strict=True):
            receipts[at] = receipts[at] or former
        return receipts

    async def change(
        self,
        kind: int,
        refs: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        """Make changes. Each message is looked up first: its topic, and the target topic of a redrive, decide whether
        the caller may make the change."""
        if terms is not None and terms.topic and not self._grant.covers(terms.topic):
            raise no_topic(terms.topic)
        self._charge(len(refs))
        if not self._grant.topics:
            return await self._gateway.change(kind, refs, due, times=times, terms=terms, by=by)
        own = {ref: one.id for ref, one in (await self.topics_of(refs)).items()}
        dues = repeat(due) if isinstance(due, int) else due
        asked = [(own[ref], at) if ref in own else None for ref, at in zip(refs, dues, strict=False)]
        # Each message is changed once, because a change may rewrite a MiB. The last of its changes is made.
        unique = list(dict.fromkeys(one for one in reversed(asked) if one is not None))[::-1]
        if not unique:
            return [ChangeOutcome(ref, Answer.UNKNOWN) for ref in refs]
        ids, at_ms = zip(*unique, strict=True)
        changed = await self._gateway.change(kind, ids, at_ms, times=times, terms=terms, by=by)
        outcomes = dict(zip(unique, changed, strict=True))
        return [
            ChangeOutcome(ref, Answer.UNKNOWN) if one is None else outcomes[one]
            for ref, one in zip(refs, asked, strict=True)
        ]

    async def state(self, ref: str, caller: str = "") -> MessageState | None:
        state = await self._gateway.state(ref, self._grant.namespace)
        return None if state is None or not self._grant.covers(state.topic) else state

    async def topics_of(self, refs: Sequence[str], caller: str = "") -> dict[str, OwnTopic]:
        known = await self._gateway.topics_of(refs, self._grant.namespace)
        return {ref: one for ref, one in known.items() if self._grant.covers(one.topic)}

    async def find(self, query: Query) -> MessagePage:
        if query.topic is not None and not self._grant.covers(query.topic):
            raise no_topic(query.topic)
        if query.name_prefix is not None:
            query = replace(query, caller=self._grant.namespace)
        page = await self._gateway.find(query)
        return page._replace(messages=[state for state in page.messages if self._grant.covers(state.topic)])

    async def pending(self, topic: str) -> TopicCount | None:
        if not self._grant.covers(topic):
            raise no_topic(topic)
        return await self._gateway.pending(topic)

    def troubles(self) -> dict[str, str]:
        return self._own(self._gateway.troubles())

    def cluster(self) -> dict[str, Any]:
        document = self._gateway.cluster()
        more: dict[str, Any] = {"topics": self._own(document.get("topics", {}))}
        if self._grant.topics:  # a caller for some topics must not see others' counts and internal addresses
            more["nodes"] = [node | {"url": ""} for node in document["nodes"]]
            more["shards"] = [
                {name: value for name, value in shard.items() if name not in ("pending", "outcomes")}
                for shard in document["shards"]
            ]
        return document | more

    def _own(self, by_topic: Mapping[str, str]) -> dict[str, str]:
        return {topic: text for topic, text in by_topic.items() if self._grant.covers(topic)}

    async def figures(self) -> Sequence[Figures]:
        """Figures cover all topics, so a caller limited to some topics gets none. `sealed_windows` does the same."""
        return [] if self._grant.topics else await self._gateway.figures()

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        return [] if self._grant.topics else await self._gateway.sealed_windows(first, most)


def _unsent(topic: str) -> Rejected:
    """The error for a topic outside the grant. Other callers' destinations are refused like unknown ones."""
    if not topic.startswith(DESTINATION):
        return no_topic(topic)
    name = topic.removeprefix(DESTINATION)
    return RejectedNow("unknown_destination", f"there is no destination {shown(name)}", "destination")


def no_topic(topic: str) -> Rejected:
    return Rejected("forbidden", f"this key is not for the topic {topic}", "topic")
