"""Where the group of a destination begins in a topic that is new for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from duemq.bus.base import Bus
from duemq.bus.topic_cursor import MAX_PARTITIONS
from duemq.cluster.admin.destination_registry import Begin
from duemq.model.destinations.destination import Destination
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.relay_access import Ended

Start = Literal["last", "first"]
STARTS: Final[tuple[Start, ...]] = get_args(Start)


def read_start(value: object) -> Start:
    """Raises Rejected `bad_field`."""
    for start in STARTS:
        if value == start:
            return start
    raise Rejected("bad_field", f"start is {' or '.join(STARTS)}, not {shown(value)}", "start")


def begin_at(bus: Bus, start: Start, ended: Ended) -> Begin:
    """Puts a group where each topic ends now (`last`), or at the oldest record that is kept (`first`). A topic that is
    made later is read from its first record. The topic of its retries has those of a former destination of its name:
    it is read from its end in any case.

    `ended`: a relay that was at work for the group before, and has not ended yet, would store where it is behind it.
    """

    async def begin(destination: Destination, topics: Sequence[str]) -> None:
        await ended(destination.name, topics)
        for topic in topics:
            await _begin(bus, topic, destination.group, "last" if topic == destination.retry_topic else start)

    return begin


async def _begin(bus: Bus, topic: str, group: str, start: Start) -> None:
    info = await bus.topic(topic)
    if info is None:
        await bus.begin_group(topic, group, ())
        return
    if info.trouble:
        raise Unavailable(f"topic {topic} cannot be read just now: {info.trouble}")
    if info.partitions > MAX_PARTITIONS:
        detail = f"topic {topic} has {info.partitions} partitions; one of up to {MAX_PARTITIONS} can be bound"
        raise Rejected("bad_field", detail, "topics")
    offsets = info.end_offsets if start == "last" else info.start_offsets
    try:
        await bus.begin_group(topic, group, offsets)
    except Rejected as error:
        if error.code != "group_at_work":
            raise
        detail = f"a relay is at work for {group}, which can begin with {topic} only while it is paused, or removed"
        raise Rejected("conflict", f"{detail} for some seconds", "topics") from error
