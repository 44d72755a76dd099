"""Computes the story of a message after its delivery: the outcome at each reader of its topic (docs/adr/0069).

The story is not stored. It is found by following the message's records: retries, dead letters and redrives have names
derived from their original record, and a reader's position shows whether the reader has passed a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from duemq.bus.base import GroupPosition
from duemq.client.consumer.done_ranges import contains, decode_ranges
from duemq.client.consumer.kafka.positions import done_in, own_metadata
from duemq.client.consumer.letter import LetterPlace, letter_name
from duemq.client.consumer.retry.headers import ERROR, REASON, origin_in
from duemq.cluster.shards.shard_reader import MessageState
from duemq.model.errors import Unavailable
from duemq.model.log.job import Job
from duemq.model.messages.dead_letters import DESTINATION, origin_of
from duemq.model.messages.names import fingerprint, of_redrive, of_return
from duemq.model.messages.record import Headers
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.relay_access import FiguresOf
from duemq.proxy.response.render import Json, times
from duemq.proxy.story.readers import Reader
from duemq.proxy.story.records import Budget, PlacedRecord, StoryRecords

_MAX_STEPS: Final = 40  # records followed for one reader; 16 retries without a redrive make 17
_MAX_JOBS: Final = 200


class StoryBuilder:
    """`jobs`: newest first. `figures`: the figures that relays report."""

    def __init__(self, gateway: Gateway, budget: Budget, jobs: Sequence[Job], figures: FiguresOf) -> None:
        self._gateway, self._bus, self._budget = gateway, gateway.bus, budget
        self.records, self._jobs, self._figures = StoryRecords(gateway.bus, budget), jobs, figures
        self.is_complete = True

    async def tell(self, reader: Reader, first: PlacedRecord, state: MessageState) -> Json | None:
        """The story of a record at one reader; None if it does not read the topic."""
        findings = _ReaderStory(reader)
        record: PlacedRecord | None = first
        for _ in range(_MAX_STEPS):
            assert record is not None
            position = await self._position(reader, record)  # first: it moves only after a return is in the log
            sent = await self._sent_back(reader.group, record, position)
            if sent is None:
                passed = position is not None and _has_passed(position, record.offset)
                letter = await self._nameless(reader, record, state.id) if passed else None
                if letter is None:
                    if position is None and not reader.is_declared and not findings.events:
                        return None
                    return self._at_rest(findings, state, passed=passed)
                findings.add_dead(letter.record.headers, letter, letter.timestamp)
            elif sent.topic == retry_topic(reader.group):
                findings.add_attempts(sent.headers)
                if sent.status != "delivered":
                    return findings.retry(sent)
                if (record := await self.records.of(sent)) is None:
                    return findings.end("unknown", f"the record of its retry is not found in {sent.topic}")
                continue
            else:
                letter = await self.records.of(sent) if sent.status == "delivered" else None
                findings.add_dead(sent.headers, letter, sent.delivered_at or sent.due)
            redriven = None if letter is None else await self._redrive(letter, findings)
            if redriven is None:
                return findings.end("dead")
            if redriven.status != "delivered" or not _goes_back(reader, redriven.topic):
                return findings.end("redriven")
            if (record := await self.records.of(redriven)) is None:
                return findings.end("redriven")
        self.is_complete = False
        return findings.end("unknown", f"no more than {_MAX_STEPS} of its records are followed")

    async def _position(self, reader: Reader, record: PlacedRecord) -> GroupPosition | None:
        self._budget.look_up()
        try:
            return await self._bus.group_position(record.topic, reader.group, record.partition)
        except Unavailable:
            if reader.is_declared:
                raise
            return None  # duemq's Kafka user may not read this consumer group

    async def _sent_back(self, group: str, record: PlacedRecord, position: GroupPosition | None) -> MessageState | None:
        """The retry or the dead letter that a reader made from a record; None if there is none."""
        topic = record.topic if position is None else position.topic
        place = LetterPlace(topic, record.partition, record.offset, record.timestamp)
        dead, retry, key = dead_letter_topic(group).encode(), retry_topic(group).encode(), record.record.key
        names = [
            of_return(letter_name("dead", group, place), dead, key, record.record.value),
            of_return(letter_name("dead", group, place), dead, key, b""),  # a letter has no value if that is too large
            of_return(letter_name("retry", group, place), retry, key, record.record.value),
        ]
        self._budget.look_up(len(names))
        for receipt in await self._gateway.named(names):
            if receipt is not None and receipt.id:
                return await self._gateway.state(receipt.id)
        return None

    async def _nameless(self, reader: Reader, record: PlacedRecord, id_: str) -> PlacedRecord | None:
        """A dead letter without a name, which a consumer wrote itself because duemq was not available."""
        return await self.records.letter(dead_letter_topic(reader.group), record.record.key, id_, record.timestamp)

    async def _redrive(self, letter: PlacedRecord, findings: _ReaderStory) -> MessageState | None:
        """The message that a job made from a dead letter."""
        name = of_redrive(f"{letter.topic}/{letter.partition}/{letter.offset}/{letter.timestamp}")
        jobs = [job for job in self._jobs if job.order.kind == "redrive" and job.order.source == letter.topic]
        asked = [(name, fingerprint(job.id.encode())) for job in jobs[:_MAX_JOBS]]
        self._budget.look_up()
        receipts = await self._gateway.named(asked or [(name, b"")])
        known = receipts[0]
        if known is None or (redriven := await self._gateway.state(known.id)) is None:
            return None
        job = next(
            (job for job, receipt in zip(jobs, receipts, strict=False) if receipt and not receipt.conflict), None
        )
        findings.add_redrive(redriven, job)
        return redriven

    def _at_rest(self, findings: _ReaderStory, state: MessageState, *, passed: bool) -> Json:
        """The end of a story at a record that was not sent back: the record is done, or still waits."""
        destination = findings.reader.destination
        began_at = None if destination is None else destination.began_at
        if passed and not findings.events and began_at and state.delivered_at < began_at:
            return findings.end("unknown", "it was delivered before this destination began to read its topics")
        if passed and self._budget.is_spent:
            return findings.end("unknown", "too much would have to be read to know")
        if passed:
            return findings.end("accepted")
        figures: Mapping[str, Any] = (destination and self._figures(destination.name)) or {}
        findings.add_failures(figures.get("last_failures", ()), state.id)
        if destination is None:
            removed = findings.reader.group.startswith(DESTINATION)
            return findings.end("waiting", "it is not declared any more" if removed else "")
        paused = "it is paused" if destination.paused else ""
        return findings.end("waiting", destination.disabled or paused or figures.get("trouble", ""))


class _ReaderStory:
    """The story of a message at one reader, while it is being built."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.events = reader, list[Json]()
        self._life: list[Json] = []  # attempts since the last redrive
        self._left_out = 0

    def add_attempts(self, headers: Headers, *, dead: bool = False) -> None:
        """Add the attempts in the headers of a retry or dead letter. The headers repeat the attempts before it."""
        if (origin := origin_in(headers)) is None:
            return
        self._life = [{"event": "failed", **times("at", one.at), "error": one.error} for one in origin.attempts]
        self._left_out = max(origin.retried + dead - len(self._life), 0)

    def add_failures(self, failures: Sequence[Mapping[str, Any]], id_: str) -> None:
        """Add the failed attempts that a relay remembers (`failures`, newest first), which have no return yet."""
        last = max((one["at_ms"] for one in self._life), default=0)
        self._life += [
            {"event": "failed", **times("at", one["at"]), "error": f"{one['status']}: {one['detail']}".rstrip(": ")}
            for one in reversed(failures)
            if one["id"] == id_ and one["at"] > last
        ]

    def add_dead(self, headers: Headers, letter: PlacedRecord | None, at: int) -> None:
        self.add_attempts(headers, dead=True)
        self._end_life()
        origin, texts = origin_of(headers), {name: (value or b"").decode(errors="replace") for name, value in headers}
        self.events.append({
            "event": "dead", **times("at", at if letter is None else letter.timestamp),
            "reason": texts.get(REASON, "" if origin is None else origin.reason), "error": texts.get(ERROR, ""),
            "topic": dead_letter_topic(self.reader.group),
            "letter": None if letter is None else f"{letter.partition}:{letter.offset}",
        })  # fmt: skip

    def add_redrive(self, redriven: MessageState, job: Job | None) -> None:
        self.events.append({
            "event": "redriven", **times("at", redriven.due), "id": redriven.id, "topic": redriven.topic,
            "status": redriven.status, "job": job and job.id, "by": job and job.by,
        })  # fmt: skip

    def retry(self, state: MessageState) -> Json:
        origin = origin_in(state.headers)
        number = 0 if origin is None else origin.retried
        retry = {"id": state.id, "number": number, "status": state.status, **times("deliver_at", state.due)}
        return self.end("retrying" if state.status == "scheduled" else state.status, state.reason) | {"retry": retry}

    def end(self, state: str, detail: str = "") -> Json:
        self._end_life()
        destination = self.reader.destination
        return {
            "group": self.reader.group, "destination": None if destination is None else destination.name,
            "state": state, "detail": detail, "events": self.events, "retry": None,
        }  # fmt: skip

    def _end_life(self) -> None:
        if self._left_out and self._life:
            self._life[0]["left_out_after"] = self._left_out
        self.events += self._life
        self._life, self._left_out = [], 0


def _has_passed(position: GroupPosition, offset: int) -> bool:
    """Whether the reader is done with a record. On Kafka the position's note is the metadata of a commit, elsewhere it
    is the plain ranges."""
    done = done_in(position.offset, own_metadata(position.offset, position.note))
    return offset < position.offset or contains(done or decode_ranges(position.note, position.offset), offset)


def _goes_back(reader: Reader, topic: str) -> bool:
    """Whether a redriven message reaches the reader again."""
    destination = reader.destination
    return destination is None or topic in (destination.own_topic, *destination.topics)
