"""The only writer of a shard's cycles: one Kafka transaction per cycle, under the shard's transactional id.

The broker does the fencing: when a producer with the same id starts, the broker ends the previous producer's open
transaction, and refuses all later requests from the previous producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.errors import KafkaError

from duemq.bus.base import AppendResults, Batches, TopicNames, WriteRefused
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.choice import make_producer
from duemq.bus.kafka.produce.decisions import Decisions
from duemq.bus.kafka.produce.failures import translate
from duemq.bus.kafka.produce.open_transactions import OpenTransaction
from duemq.bus.kafka.produce.producer import Producer, ProducerSetup
from duemq.bus.kafka.produce.states import COMMITTER, CommitterEvent, CommitterState
from duemq.bus.kafka.record_batches import RecordBatch, append_result, batches_of, refusal_of
from duemq.bus.kafka.requests.partition_producers import PartitionProducers
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import DuemqError, Fenced, LogFailed, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

_ABORT_S = 2.0

T = TypeVar("T")

CommitListener = Callable[[AppendResults, int, int], None]  # results; our time before and after the sends, ms


class KafkaCommitter:
    """A committer, created by `KafkaBus.committer`. `own`: duemq's own topics; all others are for messages. `written`:
    see `Bus.committer`. `v2`: see `uses_v2`.

    After any error it refuses further commits. Its states are a table in `states.py`; the page *States* of `make docs`
    draws them.
    """

    def __init__(
        self,
        name: str,
        options: KafkaOptions,
        wire: Wire,
        catalog: Catalog,
        own: Collection[str],
        producers: PartitionProducers,
        written: TopicNames,
        clock: Callable[[], int],
        on_commit: CommitListener,
        decisions: Decisions,
        v2: bool,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self.name, self._failpoint = name, failpoint
        self._options, self._catalog, self._own = options, catalog, own
        self._clock, self._on_commit = clock, on_commit
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Timeout | None = None
        self._lost_coordinator = False
        self.state = COMMITTER.start
        self._reason: DuemqError | None = None  # why this committer has ended
        self._stopping: asyncio.Task[None] | None = None
        setup = ProducerSetup(name, options, wire, catalog, own, self._coordinator_lost)
        self.producer: Producer = make_producer(setup, v2=v2)
        self.hanging = OpenTransaction(wire, producers, setup.transactional_id, self.producer, own, written, decisions)

    async def open(self) -> None:
        """Fence the previous committer and make the broker end its transaction. Raises LogFailed or Unavailable."""
        try:
            async with asyncio.timeout(self._options.delivery_timeout_s):
                connecting = asyncio.create_task(self.producer.connect(), name=f"kafka connect {self.name}")
                try:
                    await self.hanging.learn()
                    await connecting
                finally:
                    connecting.cancel()
                await self.producer.start()
                self._lost_coordinator = False  # there is no transaction yet that a late request could end
                await self.hanging.mend()
                if self._lost_coordinator:
                    raise LogFailed("its coordinator was lost while an earlier transaction was ended")
            if self.state is CommitterState.NEW:  # false if a newer committer has replaced it
                self._step(CommitterEvent.FENCED_PREDECESSOR)
        except (KafkaError, OSError, TimeoutError, LogFailed, AssertionError, errors.IllegalOperation) as error:
            self._end(Unavailable(f"committer {self.name!r} was never opened"))
            await self.close()
            if isinstance(error, errors.TransactionalIdAuthorizationFailed):
                raise Unavailable(f"Kafka does not let duemq's user use its transactional ids: {error!r}") from error
            raise LogFailed(f"Kafka did not let committer {self.name!r} begin: {error!r}") from error
        except BaseException:
            self._end(Unavailable(f"committer {self.name!r} was never opened"))
            raise

    async def commit(self, batches: Batches) -> AppendResults:
        async with self._turn:
            if self._reason is not None:
                raise type(self._reason)(str(self._reason))
            batches = {where: frames for where, frames in batches.items() if frames}
            if not batches:
                return {}
            self._step(CommitterEvent.BEGIN)
            try:
                results = await self._transaction(batches)
            except DuemqError as error:
                ending = error if isinstance(error, Fenced) else Unavailable(f"committer {self.name!r} failed: {error}")
                self._end(ending)
                raise
            except (KafkaError, OSError, TimeoutError, AssertionError, errors.IllegalOperation) as error:
                self._end(Unavailable(f"committer {self.name!r} failed: {error!r}"))
                raise LogFailed(f"a commit of {self.name!r} has an unknown outcome: {error!r}") from error
            except BaseException:
                self._end(Unavailable(f"a commit of committer {self.name!r} was cut off"))
                raise
            if self.state is CommitterState.COMMITTING:  # false if it has ended
                self._step(CommitterEvent.COMMITTED)
            return results

    async def retire(self) -> None:
        """Stop, because a newer committer with this name is about to begin in this process. A running commit may
        finish, within the time limit for a commit."""
        reason = Fenced(f"committer {self.name!r} was replaced by a newer one")
        try:
            async with asyncio.timeout(_ABORT_S), self._turn:
                self._end(reason)
        except TimeoutError:
            self._end(reason)
        # This committer's last requests must not reach the broker after the newer committer has asked how the last
        # transaction ended, and before it has fenced this one.
        await self._wait_for_stop()

    async def close(self) -> None:
        self._end(Unavailable(f"committer {self.name!r} is closed"), failed=self._turn.locked())
        await self._wait_for_stop()

    async def _wait_for_stop(self) -> None:
        if self._stopping is not None:
            await asyncio.wait([self._stopping])  # unlike a shield, this does not raise that task's CancelledError

    # --- a transaction --------------------------------------------------------------------------------------------

    async def _transaction(self, batches: Batches) -> AppendResults:
        stamp = self._clock()
        record_batches = await self.prepare(batches, stamp)
        await self.producer.begin()  # first, so that the checks below apply to this transaction's coordinator
        await self.hanging.check(record_batches)
        self._failpoint("before_commit")
        try:
            before = self._clock()
            patience_s = self._options.delivery_timeout_s / 2
            positions = await self._within(self.producer.send(record_batches, patience_s))
            after = self._clock()
        except BaseException as error:
            await self._abort()
            raise translate(self.name, error, self._catalog.forget) from error
        results = {where: append_result(positions[where], stamp) for where in record_batches}
        self._failpoint("in_transaction")
        try:
            await self._within(self.producer.commit())
        except (KafkaError, OSError, AssertionError) as error:
            raise translate(self.name, error, self._catalog.forget) from error
        self.hanging.last = frozenset(record_batches)
        self._failpoint("after_commit")
        self._on_commit(results, before, after)
        return results

    async def _within(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises TimeoutError after the time limit for a commit, or as soon as the coordinator is lost.

        Another coordinator, or the same one later, could continue the transaction. But markers that the coordinator
        lost are only looked for between transactions. And in version 1 a late EndTxn would end the next transaction,
        which has the same epoch.
        """
        async with asyncio.timeout(self._options.delivery_timeout_s) as self._waiting:
            try:
                return await work
            finally:
                self._waiting = None

    def _coordinator_lost(self) -> None:
        self._lost_coordinator = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def prepare(self, batches: Batches, stamp: int) -> dict[Partition, list[RecordBatch]]:
        """Raises WriteRefused, before anything is sent, for a batch that a broker would refuse.

        A refused batch fails the transaction's other batches and the whole producer, whose sequence numbers no longer
        match. And a partition without a leader, or with too few replicas in sync, gets no marker: once it is in a
        transaction, no committer with this name can begin another transaction until the partition's broker is back.
        """
        metadata = await self._catalog.find({topic for topic, _ in batches})
        record_batches = {}
        for (topic, partition), frames in batches.items():
            about = metadata.get(topic)
            if about is None or partition >= about.partitions:
                raise WriteRefused(topic, "unknown_topic", f"topic {topic!r} has no partition {partition}")
            why = refusal_of(topic, frames, about.max_frame_bytes)
            if why is not None:
                raise WriteRefused(topic, "too_large", why)
            if partition in about.trouble and topic not in self._own:
                raise WriteRefused(
                    topic, about.trouble[partition], f"topic {topic!r}: {about.topic_state.trouble_text}"
                )
            record_batches[topic, partition] = batches_of(frames, about.max_bytes, stamp, transactional=True)
        return record_batches

    async def _abort(self) -> None:
        """Abort, so that readers do not wait for this transaction. If that fails, the next committer's fence ends the
        transaction."""
        if self._lost_coordinator:
            return
        try:
            await asyncio.wait_for(self.producer.abort(), _ABORT_S)
        except (KafkaError, OSError, TimeoutError, AssertionError, LogFailed) as error:
            log.debug("committer %s could not abort: %r", self.name, error)

    def _end(self, reason: DuemqError, *, failed: bool = True) -> None:
        """Refuse further commits, and stop the producer."""
        if self.state is not CommitterState.ENDED:
            self._reason = reason
            work = self.producer.stop(failed=failed)
            self._stopping = asyncio.create_task(work, name=f"kafka committer {self.name} stop")
        self._step(CommitterEvent.END)

    def _step(self, event: CommitterEvent) -> None:
        self.state = COMMITTER.next(self.state, event)
