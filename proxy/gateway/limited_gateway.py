"""The shards as a caller sees them who may use some topics only, or who may send so many messages a second."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from duemq.bus.base import Bus
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.callers.access import Grant
from duemq.model.errors import OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.dead_letters import DESTINATION
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.message import Draft, Terms
from duemq.model.messages.names import Name, former_of_caller
from duemq.model.readiness import Readiness
from duemq.model.timing import shown
from duemq.proxy.gateway.base import ChangeOutcome, Gateway, ImportStatus, MessagePage, OwnTopic, Receipt
from duemq.storage.shard.topic_counts import TopicCount


class LimitedGateway(Gateway):
    """The gateway for one grant. A message of another topic is unknown to its caller; sending to one is `forbidden`.

    `charge` gets the number of messages of each send, and of refs of each change. A change by name goes by the id that
    a look-up found. A caller for some topics has its own names (`model/messages/names.py`); those from an older version
    are found still (docs/adr/0057).
    """

    def __init__(self, gateway: Gateway, grant: Grant, charge: Callable[[int], None]) -> None:
        self._gateway, self._grant, self._charge = gateway, grant, charge

    @property
    def bus(self) -> Bus:
        return self._gateway.bus

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
        """The receipts of the messages that have the names of drafts already, by place. Raises Unavailable."""
        ats = [at for at, draft in enumerate(drafts) if at not in refused and former_of_caller(draft.name)]
        if not ats:
            return {}
        try:
            receipts = await self.named([(drafts[at].name, drafts[at].fingerprint) for at in ats])
        except OutcomeUnknown as error:  # nothing is sent yet
            raise Unavailable(error.detail) from error
        return {at: receipt for at, receipt in zip(ats, receipts, strict=True) if receipt is not None}

    def _visible(self, answer: Receipt | Rejected) -> Receipt | Rejected:
        """The answer without the id of a message that moved to a topic of others since it got its name."""
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
        """Each message is looked up first: its topic decides, and that to which it is redriven."""
        if terms is not None and terms.topic and not self._grant.covers(terms.topic):
            raise no_topic(terms.topic)
        self._charge(len(refs))
        if not self._grant.topics:
            return await self._gateway.change(kind, refs, due, times=times, terms=terms, by=by)
        own = {ref: one.id for ref, one in (await self.topics_of(refs)).items()}
        dues = repeat(due) if isinstance(due, int) else due
        asked = [(own[ref], at) if ref in own else None for ref, at in zip(refs, dues, strict=False)]
        # Each change once, for it may rewrite a MiB: where it stands last, so that the last time of a message holds.
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

    async def import_file(self, import_command: ImportCommand) -> ImportStatus:
        self._require_all_topics("importing files")
        return await self._gateway.import_file(import_command)

    async def import_files(self, import_commands: Sequence[ImportCommand]) -> list[ImportStatus]:
        self._require_all_topics("importing files")
        return await self._gateway.import_files(import_commands)

    async def imports(
        self, state: str | None = None, below: str = "", limit: int | None = None, after: str | None = None
    ) -> tuple[int, list[ImportStatus]]:
        self._require_all_topics("looking imports up")
        return await self._gateway.imports(state, below, limit, after)

    async def import_record(self, id_: str) -> ImportStatus | None:
        self._require_all_topics("looking imports up")
        return await self._gateway.import_record(id_)

    async def imported_ids(self, id_: str, first: int, most: int) -> bytes | None:
        self._require_all_topics("looking imports up")
        return await self._gateway.imported_ids(id_, first, most)

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

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        return self._gateway.topic_lateness(topic)

    def trouble(self, topic: str) -> str | None:
        return self._gateway.trouble(topic)

    def troubles(self) -> dict[str, str]:
        return self._own(self._gateway.troubles())

    def cluster(self) -> dict[str, Any]:
        document = self._gateway.cluster()
        more: dict[str, Any] = {"topics": self._own(document.get("topics", {}))}
        if self._grant.topics:  # what all callers have sent, and addresses inside, are not for one of some topics
            more["nodes"] = [node | {"url": ""} for node in document["nodes"]]
            more["shards"] = [
                {name: value for name, value in shard.items() if name not in ("pending", "outcomes")}
                for shard in document["shards"]
            ]
        return document | more

    def _own(self, by_topic: Mapping[str, str]) -> dict[str, str]:
        return {topic: text for topic, text in by_topic.items() if self._grant.covers(topic)}

    async def figures(self) -> Sequence[Figures]:
        """Of all topics together: for a caller for some of them there are none. So with `sealed_windows`."""
        return [] if self._grant.topics else await self._gateway.figures()

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        return [] if self._grant.topics else await self._gateway.sealed_windows(first, most)

    async def drain(self, name: str) -> None:
        self._require_all_topics("draining nodes")
        await self._gateway.drain(name)

    async def resume(self, name: str) -> None:
        self._require_all_topics("resuming nodes")
        await self._gateway.resume(name)

    def readiness(self) -> Readiness:
        return self._gateway.readiness()

    def stuck(self) -> Mapping[int, float]:
        return self._gateway.stuck()

    def why_not_ready(self) -> str | None:
        return self._gateway.why_not_ready()

    def _require_all_topics(self, what: str) -> None:
        if self._grant.topics:
            raise Rejected("forbidden", f"{what} needs a key for all topics; this one is for some")


def _unsent(topic: str) -> Rejected:
    """Destinations of others are refused as those that do not exist."""
    if not topic.startswith(DESTINATION):
        return no_topic(topic)
    name = topic.removeprefix(DESTINATION)
    return RejectedNow("unknown_destination", f"there is no destination {shown(name)}", "destination")


def no_topic(topic: str) -> Rejected:
    return Rejected("forbidden", f"this key is not for the topic {topic}", "topic")
