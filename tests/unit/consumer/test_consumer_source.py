"""What a consumer asks Kafka for, and what it stores, without a Kafka."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaConnectionError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.kafka.offsets import FileOffsets
from duemq.client.consumer.kafka.parked_partitions import RECREATED
from duemq.client.consumer.kafka.positions import metadata_of, own_metadata, topics_in, with_done
from duemq.client.consumer.kafka.source import KafkaMessageSource
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.errors import Rejected, Unavailable
from tests.support.consumer.fake_group import RETRY, T0, T1, Group, changes, with_source

# --- options ----------------------------------------------------------------------------------------------------------


def test_each_client_gets_the_options_it_knows() -> None:
    options = ConsumerOptions(
        kafka={"group_instance_id": "a", "max_partition_fetch_bytes": 5, "linger_ms": 3, "request_timeout_ms": 7}
    )
    assert options.kafka_of(AIOKafkaConsumer) == {
        "group_instance_id": "a", "max_partition_fetch_bytes": 5, "request_timeout_ms": 7,
    }  # fmt: skip
    assert options.kafka_of(AIOKafkaProducer) == {"linger_ms": 3, "request_timeout_ms": 7}
    assert options.kafka_of(AIOKafkaAdminClient) == {"request_timeout_ms": 7}


@pytest.mark.parametrize("name", ["sesion_timeout_ms", "topics", "group_id", "enable_auto_commit", "bootstrap_servers"])
def test_an_option_that_no_client_can_take_is_refused_by_name(name: str) -> None:
    with pytest.raises(Rejected, match=name) as refused:
        ConsumerOptions(kafka={name: 1})
    assert (refused.value.code, refused.value.field) == ("bad_option", "kafka")


def test_a_broadcasting_member_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    ConsumerOptions()
    ConsumerOptions(mode="broadcasting", offsets_folder="/offsets")
    with pytest.raises(Rejected, match="offsets_folder") as refused:
        ConsumerOptions(mode="broadcasting")
    assert refused.value.field == "offsets_folder"


def test_a_source_passes_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, object] = {}

    def consumer(**settings: object) -> Group:
        passed.update(settings)
        return Group()

    monkeypatch.setattr("duemq.client.consumer.kafka.source.new_consumer", consumer)
    monkeypatch.setattr("duemq.client.consumer.kafka.source.start_without_topics", lambda kafka: None)
    options = ConsumerOptions(kafka={"client_id": "mine", "linger_ms": 5, "max_poll_interval_ms": 9})
    KafkaMessageSource("g", "127.0.0.1:1", options, ["t"], (), changes([]))
    assert (passed["client_id"], passed["max_poll_interval_ms"]) == ("mine", 9) and "linger_ms" not in passed


# --- the file of a broadcasting member --------------------------------------------------------------------------------


def test_two_processes_cannot_be_one_member(tmp_path: Path) -> None:
    first, second = (FileOffsets(tmp_path, "g", "host") for _ in range(2))
    first.lock()
    with pytest.raises(Rejected, match=r"host\.json") as refused:
        second.lock()
    assert (refused.value.code, refused.value.field) == ("member_taken", "member")
    FileOffsets(tmp_path, "g", "other").lock()
    first.unlock()
    second.lock()


def test_the_file_knows_topics_that_are_not_there_yet(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "g", "host")
    offsets.save({T0: 5}, ["later"])
    offsets.save({T0: 6})
    again = FileOffsets(tmp_path, "g", "host")
    assert again.load() == {T0: 6} and sorted(again.topics) == ["later", "t"]


def test_the_file_forgets_offsets_of_a_topic_made_anew(tmp_path: Path) -> None:
    other = TopicPartition("other", 0)
    offsets = FileOffsets(tmp_path, "g", "host")
    assert not offsets.recreated({"t": "a", "other": "b"})
    offsets.save({T0: 5, other: 6})
    again = FileOffsets(tmp_path, "g", "host")
    again.load()
    assert again.recreated({"t": "c"}) == {"t"} and not again.recreated({"t": "c", "other": "b"})
    again.save({})
    assert FileOffsets(tmp_path, "g", "host").load() == {other: 6} and sorted(again.topics) == ["other", "t"]


def test_a_file_that_may_not_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "g", "host")
    offsets.path.mkdir(parents=True)
    with pytest.raises(Unavailable, match="directory"):
        offsets.load()


# --- a source ---------------------------------------------------------------------------------------------------------


def test_a_topic_with_another_id_is_read_anew() -> None:
    """Also where its log has become longer than the old one was, and no fetch fails."""

    async def use(source: KafkaMessageSource) -> None:
        identity, source.changes.moving = source.identity, True
        source.changes.doubt()
        assert not await identity.compare() and source.changes.in_doubt.is_set()
        source.changes.moving = False
        kafka.commits = {T0: OffsetAndMetadata(15, metadata_of(15, "f" * 8)), T1: OffsetAndMetadata(15, "foreign")}
        assert await identity.compare() and not source.changes.in_doubt.is_set()
        assert source.parking.parked == {T0: RECREATED}
        kafka.id <<= 40
        assert await identity.compare()
        assert source.parking.parked == {T0: RECREATED, T1: RECREATED, RETRY: RECREATED}, (
            "none says what it is of, but it changed"
        )
        await source.store({T0: 10, T1: 10, RETRY: 10}, source.changes.turn)
        source.parking.parked.clear()
        assert await identity.compare() and not source.parking.parked

    kafka = Group()
    with_source(kafka, use)


def test_only_what_is_sure_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    kafka = Group()

    async def use(source: KafkaMessageSource) -> None:
        source.starts.known_topics |= {"t", "long ago"}
        source.changes.doubt()
        assert not await source.save({T0: FetchPosition(3, 5)}), "nobody knows yet which log this is"
        assert await source.identity.compare()
        assert await source.save({T0: FetchPosition(3, 5), RETRY: FetchPosition(1, 1)})
        assert kafka.commits == {
            T0: OffsetAndMetadata(3, metadata_of(5, "00000000", commit=3)),
            RETRY: OffsetAndMetadata(1, metadata_of(1, "00000000", ["t"], 1)),
        }
        source.parking.park({T0: 9})  # its log may be another one by now
        assert set(await source.save({T0: FetchPosition(9, 9), T1: FetchPosition(4, 4)})) == {T1}
        assert (kafka.commits[T0].offset, kafka.commits[T1].offset) == (3, 4)
        kafka.fails = [IllegalGenerationError()]
        assert not await source.save({T1: FetchPosition(5, 5)})
        kafka.fails = [UnknownTopicOrPartitionError()]  # aiokafka's own commit would wait until it is there again
        assert not await source.save({T1: FetchPosition(5, 5)})
        kafka.numbers = set()
        assert not await source.save({T1: FetchPosition(5, 5)}), "a topic that is gone"
        assert kafka.commits[T1].offset == 4

    with_source(kafka, use)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_what_the_group_knows_is_stored_when_it_changes() -> None:
    """A member that starts later has to know a topic that was deleted meanwhile, also where no retry came since."""
    kafka = Group()

    async def use(source: KafkaMessageSource) -> None:
        assert await source.save({RETRY: FetchPosition(1, 2)})
        assert kafka.commits == {RETRY: OffsetAndMetadata(1, metadata_of(2, commit=1))}
        kafka.commits[T0] = OffsetAndMetadata(5, "")  # another member has begun with it
        await source.check_partitions()
        assert kafka.commits[RETRY] == OffsetAndMetadata(1, metadata_of(2, "00000000", ["t"], 1))
        requests = kafka.requests
        await source.check_partitions()
        assert kafka.requests == requests, "only when it changes"
        source.starts.known_topics.clear()
        await source.changes.on_partitions_assigned([RETRY])
        source.changes.confirm(source.changes.doubts)
        await source.check_partitions()
        assert kafka.requests == requests, "where it is in the partition of retries is not known yet"

    with_source(kafka, use)


def test_a_pull_that_finds_no_place_parks_its_partition() -> None:
    kafka: Any = Group()
    answers: list[Any] = [NoOffsetForPartitionError(T0), OffsetOutOfRangeError({T1: 7}), KafkaConnectionError(), {}]

    async def getmany(*_: object, **__: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def use(source: KafkaMessageSource) -> None:
        kafka.getmany = getmany
        for _ in range(4):
            assert await source.pull(0, 1) == {}
        assert source.parking.parked == {T0: None, T1: 7}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duemq.client.consumer.kafka.source._AGAIN_S", 0.0)
        with_source(kafka, use)


def test_the_place_of_records_that_are_kept_back_is_not_known() -> None:
    """aiokafka is past them, but no handler has had them: whoever stored that place would skip them after a crash."""
    kafka: Any = Group()
    kafka.places = {T0: 7}

    async def getmany(*_: object, **__: object) -> Any:
        return {T0: ["a record"]}

    async def use(source: KafkaMessageSource) -> None:
        assert await source.position(T0) == 7
        kafka.getmany = getmany
        source.changes.doubt()
        pulling = asyncio.create_task(source.pull(0, 1))
        await asyncio.sleep(0)
        source.changes.confirm(source.changes.doubts)
        assert await source.position(T0) is None, "it is sure which log it is, and the pull has not gone on yet"
        assert await pulling == {T0: ["a record"]}
        assert await source.position(T0) == 7

    with_source(kafka, use)


def test_an_offset_beyond_the_end_is_stored_as_one_of_the_topic_that_is_there_now() -> None:
    """It was stored as one of the topic before: at the next look all that was read meanwhile was read once more."""
    kafka: Any = Group()

    async def getmany(*_: object, **__: object) -> Any:
        raise OffsetOutOfRangeError({T0: 21})

    async def use(source: KafkaMessageSource) -> None:
        assert await source.identity.compare()
        assert await source.save({T0: FetchPosition(15, 15), T1: FetchPosition(15, 15)})
        kafka.id <<= 40
        kafka.getmany = getmany
        assert await source.pull(0, 1) == {}
        work = [asyncio.create_task(each) for each in (source.parking.run(), source.compare_often())]
        async with asyncio.timeout(10):
            while kafka.paused or source.changes.in_doubt.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
        for each in work:
            each.cancel()
        await asyncio.wait(work)
        assert kafka.places == {T0: 10, T1: 10, RETRY: 10}
        anew = source.starts.ids["t"][:8]
        assert kafka.commits[T0] == kafka.commits[T1] == OffsetAndMetadata(10, metadata_of(10, anew, commit=10))
        assert await source.identity.compare() and not source.parking.parked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duemq.client.consumer.kafka.parked_partitions._OTHERS_S", 0.0)
        with_source(kafka, use)


@pytest.mark.parametrize("topic_id", ["f" * 8, None])
def test_a_group_that_mirrormaker_copied_goes_on_where_its_offset_is(topic_id: str | None) -> None:
    """It keeps the metadata, and translates the offset alone. The topic has another id in the other cluster."""
    kafka: Any = Group()
    done: Ranges = ((17, 19),)

    async def use(source: KafkaMessageSource) -> None:
        place = FetchPosition(15, 19, done)
        own = with_done(metadata_of(19, topic_id, commit=15), place)
        kafka.commits = {T0: OffsetAndMetadata(12, own), T1: OffsetAndMetadata(15, own)}
        assert await source.compare()
        assert T0 not in source.parking.parked, "it was copied: the ids of two clusters differ"
        assert (source.parking.parked.get(T1) == RECREATED) is (topic_id is not None), "it is of this cluster"
        assert T0 not in source.identity.done, "what is done is relative to the offset that it was written for"
        assert source.identity.done.get(T1) == (None if topic_id else done)

    with_source(kafka, use)


def test_metadata_says_what_it_is_of_to_members_of_older_versions() -> None:
    older = re.compile(r"duemq pull=(\d{1,18})(?: of=([0-9a-f]{8}))?(?: topics=((?:[\w-]{8})*))?(?: done=([\w-]+))?")
    match = older.fullmatch(metadata_of(7, "0" * 32, ["t"], 5))
    assert match is not None and match[1] == "7" and topics_in([match[0]], ["t", "u"]) == {"t"}
    assert own_metadata(5, match[0]) == match[0] and own_metadata(6, match[0]) is None
    for foreign in ("", "anything", metadata_of(7, "0" * 32, ["t"])):
        assert own_metadata(6, foreign) == foreign


def test_an_offset_beyond_the_end_that_is_met_while_the_ids_are_asked_for() -> None:
    """The log has grown past it when the answer is there."""
    kafka: Any = Group()

    async def use(source: KafkaMessageSource) -> None:
        source.starts.ids["t"] = "f" * 32
        source.changes.doubt()

        def meet() -> None:
            kafka.on_ask = lambda: None
            source.changes.doubt()
            source.parking.park({T0: 15})

        kafka.on_ask = meet
        assert not await source.compare() and source.parking.parked[T0] == RECREATED
        assert await source.compare()
        assert source.parking.parked[T0] == RECREATED, "it is found once only: none of its offsets says what it is of"

    with_source(kafka, use)


def test_what_was_read_of_a_log_that_is_gone_is_not_stored_when_partitions_move() -> None:
    """It was stored as if it were of the new one, whose first records were skipped then."""
    kafka = Group()

    async def use(source: KafkaMessageSource) -> None:
        assert await source.compare()
        kafka.id <<= 40
        assert await source.compare() and source.parking.parked.keys() == {T0, T1, RETRY}
        stored = list[Collection[TopicPartition]]()

        async def leave(_: object) -> None:
            stored.append(await source.save({T0: FetchPosition(15, 15)}))

        source.changes._lost = leave
        await source.changes.on_partitions_revoked([T0, T1, RETRY])
        assert not any(stored) and len(stored) == 1 and not kafka.commits
        await source.changes.on_partitions_assigned([T0])
        assert await source.compare() and await source.save({T0: FetchPosition(3, 3)})

    with_source(kafka, use)


def test_nothing_is_handled_before_it_is_known_which_log_it_is_of() -> None:
    """What was read of a topic made anew was forgotten when that was found out, and handled twice."""
    kafka: Any = Group()
    records = {T0: ["of the old one"], T1: ["of the same"]}

    async def getmany(*_: object, **__: object) -> Any:
        return dict(records)

    async def use(source: KafkaMessageSource) -> None:
        kafka.getmany = getmany
        assert await source.pull(0, 1) == records
        source.changes.doubt()
        pulling = asyncio.create_task(source.pull(0, 1))
        await asyncio.sleep(0)
        assert not pulling.done()
        source.parking.park({T0: RECREATED})
        source.changes.confirm(source.changes.doubts)
        assert await pulling == {T1: ["of the same"]}
        source.changes.doubt()
        pulling = asyncio.create_task(source.pull(0, 1))
        await asyncio.sleep(0)
        await source.changes.on_partitions_revoked([T0, T1])
        await source.changes.on_partitions_assigned([T0, T1])
        source.changes.confirm(source.changes.doubts)
        assert await pulling == {}, "they came again, and begin at what is committed"

    with_source(kafka, use)


def test_a_look_for_topics_goes_on_whatever_it_meets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.consumer.kafka.source._LOOK_SOON_S", (0.0,) * 9)
    answers: list[Any] = [
        KafkaConnectionError(), KeyError("a bug"), asyncio.CancelledError(), frozenset({"t"}), frozenset(),
    ]  # fmt: skip

    async def use(source: KafkaMessageSource) -> None:
        enough = asyncio.Event()

        async def look() -> frozenset[str]:
            if not answers:
                enough.set()
                await asyncio.Event().wait()
            answer = answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[no-any-return]

        monkeypatch.setattr(source, "check_partitions", look)
        looking = asyncio.create_task(source.check_often())
        async with asyncio.timeout(10):
            await enough.wait()
        looking.cancel()
        await asyncio.wait([looking])

    caplog.set_level(logging.INFO, "duemq.client.consumer")
    with_source(Group(), use)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        *["look for partitions of g fails, and tries again"] * 3,
        "topic t of group g no longer exists", "topic t of group g exists now",
    ]  # fmt: skip
