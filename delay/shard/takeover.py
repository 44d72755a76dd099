"""The steps before the first cycle of a new master: a barrier in the ledger and, if an operator orders it, a rebase."""

from __future__ import annotations

import logging
from dataclasses import replace

from duemq.bus.base import Bus, Committer
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.delay.replica.replica import Replica
from duemq.model.errors import LogFailed
from duemq.model.log.ledger import Barrier, Entry, read_ledger
from duemq.model.messages.record import Partition, pack_record, unpack_record

log = logging.getLogger(__name__)

_READ = 1_000
_LOOK_BACK = 100  # how far before the end of a ledger the search for its last entry begins


async def append_barrier(replica: Replica, committer: Committer, now: int) -> int:
    """Append a barrier to the shard's ledger, and return its offset. Raises the errors of `Committer.commit`.

    `committer` has fenced every older master, and the append succeeds only at the partition's true leader. So a reader
    that has reached the barrier has read all entries of all earlier masters, whichever broker reported the end offset.
    """
    where = (LEDGER, replica.shard)
    barrier = Barrier(replica.entry.number, now, replica.cluster)
    return (await committer.commit({where: [pack_record(None, (), barrier.encode())]}))[where].first_offset


async def _last_number(bus: Bus, where: Partition, barrier: int) -> int:
    """The number of the last entry before the barrier, -1 if there is no entry. Raises LogFailed.

    Barriers and aborted cycles leave gaps, so it starts further and further back until it finds an entry.
    """
    start, back, number = barrier + 1, _LOOK_BACK, -1
    first = await bus.start_offset(*where)
    while number < 0 and start > first:
        offset = start = max(barrier - back, first)
        while offset <= barrier:
            records = await bus.read(*where, offset, _READ)
            if not records:
                raise LogFailed(f"shard {where[1]}: its ledger cannot be read from {offset} to {barrier} now")
            entries = (read_ledger(unpack_record(record.frame).payload) for record in records)
            number = max([number, *(entry.number for entry in entries if isinstance(entry, Entry))])
            offset = records[-1].offset + 1
        back *= 16
    return number


async def rebase(replica: Replica, bus: Bus, committer: Committer, now: int) -> None:
    """Make this replica the truth on an operator's order, although the ledger continued without it or was lost.

    Entries that other masters appended after this replica's last entry are void: their deliveries may be repeated, and
    the commands they applied are applied again if the buffer still has them. Replicas at another entry copy this one.
    Raises LogFailed if the ledger cannot be read now.
    """
    where = (LEDGER, replica.shard)
    barrier = await append_barrier(replica, committer, now)
    before = replica.entry
    last = max(before.number, await _last_number(bus, where, barrier))
    entry = replace(
        before, number=last + 1, at=now, answers={}, deferred=(), imported=(), lost=None, base=before.number
    )
    appends = await committer.commit({where: [pack_record(None, (), entry.encode())]})
    replica.advance(replica.cycle(), entry, appends[where].first_offset + 1)
    log.critical(
        "shard %d was recovered by an operator: entry %d follows entry %d, and the entries between them are void",
        replica.shard, entry.number, before.number, extra={"action": "recover", "shard": replica.shard},
    )  # fmt: skip
