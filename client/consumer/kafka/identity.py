"""Checks that a topic is still the one that the group's offsets belong to: it may have been recreated under its name.

A recreated topic uses the same offsets again. If its log is shorter, a fetch from an old offset fails; if it is already
longer, every record before that offset would be skipped. So each commit stores the topic's id. The ids are compared
when partitions are assigned, before any of their records is handled or any position is stored; when an offset is out of
range; and every 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import client_of
from duemq.bus.kafka.requests.topic_ids import topic_ids
from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.kafka.parked_partitions import RECREATED, ParkedPartitions
from duemq.client.consumer.kafka.positions import done_in, is_of, own_metadata, says_of
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.starts import Starts

_ASK_S = 10.0


class TopicIdentity:
    """Checks the identity of the topics that one aiokafka consumer in a group reads."""

    def __init__(
        self,
        kafka: AIOKafkaConsumer,
        topics: Collection[str],
        starts: Starts,
        parking: ParkedPartitions,
        changes: Rebalance,
    ) -> None:
        self._kafka, self._topics, self._starts = kafka, topics, starts
        self._parking, self._changes = parking, changes
        self.done: Mapping[TopicPartition, Ranges] = {}
        """Ranges done after the group's committed offset, for partitions whose log is still the same."""

    async def compare(self) -> bool:
        """Compare the topics' ids with the stored ones. False if partitions moved during the call, or must be compared
        again. Calls must not overlap.

        Raises KafkaError or TimeoutError.
        """
        if self._changes.moving:
            return False
        turn, doubts = self._changes.turn, self._changes.doubts
        partitions, previous_ids = self._kafka.assignment(), self._starts.ids
        begins = {each for each, offset in self._parking.parked.items() if offset == RECREATED}
        async with asyncio.timeout(_ASK_S):
            ids = await topic_ids(client_of(self._kafka), {each.topic for each in partitions})
        places = await self._starts.places({*partitions, *(TopicPartition(topic, 0) for topic in self._topics)})
        if turn != self._changes.turn:
            return False
        metadata_by_partition = {each: own_metadata(place.offset, place.metadata) for each, place in places.items()}
        recreated = []
        for each in partitions:
            metadata, now = metadata_by_partition.get(each), ids.get(each.topic)
            same = is_of(metadata, now) if says_of(metadata) else previous_ids.get(each.topic, now) == now
            if now is not None and not same and each not in begins:
                recreated.append(each)
        self._parking.park(dict.fromkeys(recreated, RECREATED))
        self.done = {
            each: done
            for each in partitions & places.keys()
            if self._parking.parked.get(each) is None
            and (done := done_in(places[each].offset, metadata_by_partition[each]))
        }
        self._starts.known_topics.update(each.topic for each in places)
        previous_ids.update(ids)
        return self._changes.confirm(doubts)
