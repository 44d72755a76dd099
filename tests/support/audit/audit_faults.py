"""Faults of a server, put into a world (`audit_worlds.py`): each says which violations an audit has to find, and these
only.

A fault of the ledger is one that believes itself: where it counts, its counts and checksums are changed with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from duemq.model.log.ledger import Answer
from tests.support.audit.audit_record_faults import (
    after_cancel,
    after_death,
    altered,
    altered_headers,
    altered_headers_of_an_imported_one,
    altered_imported,
    altered_letter,
    drop,
    drop_an_imported_one,
    early,
    early_copy,
    forged_due,
    letter_for_another_topic,
    letter_of_a_stranger,
    letter_of_another_shard,
    lost_letter,
    no_id,
    of_a_repeat,
    out_of_order,
    repeat,
    repeat_a_direct_one,
    replaced,
    stray_letter,
    unknown_offset,
    unknown_row,
    unknown_shard,
    wrong_attempt,
    wrong_due,
    wrong_due_after_a_move,
    wrong_partition,
    wrong_topic,
)
from tests.support.audit.audit_term_faults import FAULTS as OF_TERMS
from tests.support.audit.audit_term_faults import told_of_a_waiting_message
from tests.support.audit.audit_worlds import Found, Record, World, of_command, of_shard

Failpoint = Callable[[random.Random, World], list[Found]]

# --- answers ----------------------------------------------------------------------------------------------------------


def delivered_though_it_waits(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.DELIVERED)


def unknown_though_it_waits(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.UNKNOWN)


def dead_though_it_waits(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.DEAD)


def cancelled_though_it_waits(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.CANCELLED_BEFORE)


def delivered_before_it_was(chosen: random.Random, world: World) -> list[Found]:
    """A cancel was told that its message had been delivered, and that came later."""
    answers, cursors, pairs = world.answers(), _cursors(world), []
    for cancel in world.told("cancel", Answer.CANCELLED_BEFORE):
        entry = answers[cancel["shard"], cancel["offset"]]["entry"]
        cursor = cursors[cancel["shard"], entry["n"]]
        schedules = world.schedules()
        pairs += [
            (cancel, schedules[one["shard"], one["first_offset"]]) for one in world.plain()
            if one["shard"] == cancel["shard"] and one["first_offset"] < cancel["offset"]
            and (one["first_due"], one["first_offset"], 0) > cursor
        ]  # fmt: skip
    cancel, of = chosen.choice(pairs)
    world.used |= {(cancel["shard"], cancel["offset"]), (of["shard"], of["offset"])}
    cancel.update(first_due=of["due"], first_offset=of["offset"], first_row=0)
    world.answer((cancel["shard"], cancel["offset"]), Answer.DELIVERED)
    return [of_command("false_answer", of)]


def unknown_though_it_was_delivered(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("cancel", Answer.DELIVERED))
    world.answer((victim["shard"], victim["offset"]), Answer.UNKNOWN)
    return [("false_answer", victim["shard"], victim["first_offset"], victim["first_row"])]


def cancelled_twice(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    world.answer((victim["shard"], victim["offset"]), Answer.OK)
    world.count(victim["shard"], cancelled=1)
    return [("false_answer", victim["shard"], victim["first_offset"], victim["first_row"])]


def answered_for_nobody(chosen: random.Random, world: World) -> list[Found]:
    """A message that there is not was cancelled before, it is said."""
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    victim["first_row"] = 77
    return [("false_answer", victim["shard"], victim["first_offset"], 77)]


def refused(chosen: random.Random, world: World) -> list[Found]:
    """A cancel that is right was called malformed."""
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    return _refused(world, victim)


def refused_schedule(chosen: random.Random, world: World) -> list[Found]:
    """A message that is right was called malformed: it is gone."""
    victim = world.take_command(chosen, world.waiting())
    world.count(victim["shard"], accepted=-1, pending=-1)
    world.keys(victim["shard"], taken=[victim])
    return _refused(world, victim, new=True)


def refused_name(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("schedule", Answer.DUPLICATE))
    return _refused(world, victim)


def _refused(world: World, victim: Record, *, new: bool = False) -> list[Found]:
    place = victim["shard"], victim["offset"]
    if new:
        entry = next(one for one in world.entries if one["shard"] == place[0] and one["applied"] > place[1])
        entry["answers"] = [*(entry["answers"] or ()), {"offset": place[1], "answer": int(Answer.MALFORMED)}]
    world.answer(place, Answer.MALFORMED)
    victim["content"] += world.first * 1_000_003
    world.letters.append(world.letter_of(victim))
    return [of_command("refused", victim)]


def known_without_a_first(chosen: random.Random, world: World) -> list[Found]:
    """A file was called known, and nobody has handed it over before."""
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    none: Record = dict.fromkeys(("first_due", "first_offset", "first_row"))
    victim.update(none | {"kind": "import", "plain": True, "sha256": "ab" * 32, "path": "/x", "rows": 1, "window": 0})
    world.answer((victim["shard"], victim["offset"]), Answer.FILE_DUPLICATE)
    return [of_command("false_answer", victim)]


def cancelled_by_a_name_of_nothing(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    none: Record = dict.fromkeys(("first_due", "first_offset", "first_row"))
    victim.update(none | {"plain": True, "name": "n:nobody"})
    return [of_command("false_answer", victim)]


def unanswered(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    world.answer((victim["shard"], victim["offset"]), None)
    return [of_command("unanswered", victim)]


def unanswered_name(chosen: random.Random, world: World) -> list[Found]:
    named = [one for one in world.told("schedule", Answer.ACCEPTED) if _is(world, one, "orders")]
    spoken_of = {one["name"] for one in world.commands if one["kind"] != "schedule"}
    several = [one["name"] for one in world.commands if one["kind"] == "schedule" and one["name"]]
    alone = [one for one in named if one["name"] not in spoken_of and several.count(one["name"]) == 1]
    victim = world.take_command(chosen, alone)
    world.answer((victim["shard"], victim["offset"]), None)
    return [of_command("unanswered", victim)]


def _is(world: World, schedule: Record, topic: str) -> bool:
    changed = world.changed()
    return schedule["topic"] == topic and (schedule["shard"], schedule["offset"]) not in changed


def malformed_accepted(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("malformed", Answer.MALFORMED))
    world.answer((victim["shard"], victim["offset"]), Answer.OK)
    world.letters[:] = [
        one for one in world.letters if (one["command"], one["content"]) != (victim["offset"], victim["content"])
    ]
    return [of_command("false_answer", victim)]


def answered_nothing(chosen: random.Random, world: World) -> list[Found]:
    """An answer, and no command."""
    answers = (Answer.DUPLICATE, Answer.CONFLICT)
    victim = world.take_command(chosen, [one for answer in answers for one in world.told("schedule", answer)])
    world.commands.remove(victim)
    return [of_command("ledger", victim)]


def answered_twice(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    entry = world.answers()[victim["shard"], victim["offset"]]["entry"]
    code = int(Answer.CANCELLED_BEFORE)
    later = next(one for one in world.entries if one["shard"] == victim["shard"] and one["n"] == entry["n"] + 1)
    later["answers"] = [*(later["answers"] or ()), {"offset": victim["offset"], "answer": code}]
    return [of_command("ledger", victim)]


def name_twice(chosen: random.Random, world: World) -> list[Found]:
    """Two messages have one name."""
    spoken_of = {one["name"] for one in world.commands if one["kind"] != "schedule"}
    repeats = [one for one in world.told("schedule", Answer.DUPLICATE) if one["name"] not in spoken_of]
    victim = world.take_command(chosen, [one for one in repeats if one["due"] > one["at"] + 1_800_000])
    world.answer((victim["shard"], victim["offset"]), Answer.ACCEPTED)
    world.count(victim["shard"], accepted=1, pending=1)
    world.keys(victim["shard"], added=[victim])
    return [of_command("name_twice", victim)]


def repeat_of_nothing(chosen: random.Random, world: World) -> list[Found]:
    """A new message was called a repeat: it is gone."""
    spoken_of = {one["name"] for one in world.commands if one["kind"] != "schedule"}
    names = [one["name"] for one in world.commands if one["kind"] == "schedule"]
    new = [one for one in world.told("schedule", Answer.ACCEPTED)
           if one["name"] not in spoken_of and names.count(one["name"]) == 1]  # fmt: skip
    victim = world.take_command(chosen, [one for one in new if one["due"] > one["at"] + 1_800_000])
    world.answer((victim["shard"], victim["offset"]), chosen.choice((Answer.DUPLICATE, Answer.CONFLICT)))
    world.count(victim["shard"], accepted=-1, pending=-1)
    world.keys(victim["shard"], taken=[victim])
    return [of_command("false_answer", victim)]


def repeat_of_another(chosen: random.Random, world: World) -> list[Found]:
    """Another message under a name that is taken was called a repeat of the first."""
    victim = world.take_command(chosen, world.told("schedule", Answer.CONFLICT))
    world.answer((victim["shard"], victim["offset"]), Answer.DUPLICATE)
    return [of_command("false_answer", victim)]


def conflict_with_itself(chosen: random.Random, world: World) -> list[Found]:
    """A repeat was called another message than the first of its name."""
    victim = world.take_command(chosen, world.told("schedule", Answer.DUPLICATE))
    world.answer((victim["shard"], victim["offset"]), Answer.CONFLICT)
    return [of_command("false_answer", victim)]


def exchanged(chosen: random.Random, world: World) -> list[Found]:
    """Two commands under names got each the answer of the other."""
    return [*repeat_of_another(chosen, world), *conflict_with_itself(chosen, world)]


# --- the ledger -------------------------------------------------------------------------------------------------------


def _due_long_ago(chosen: random.Random, world: World) -> Record:
    """A message that waits became due right behind the cursor, and the shard went on for twenty minutes."""
    victim = world.take_command(chosen, world.waiting())
    shard = victim["shard"]
    window = world.windows[shard]
    world.keys(shard, taken=[victim])
    victim["due"] = window.cursor[0] + 1
    world.keys(shard, added=[victim])
    world.windows[shard] = replace(window, ended_at=window.ended_at + 1_200_000)
    return victim


def overdue(chosen: random.Random, world: World) -> list[Found]:
    return [of_command("overdue", _due_long_ago(chosen, world))]


def unrecorded(chosen: random.Random, world: World) -> list[Found]:
    victim = _due_long_ago(chosen, world)
    world.deliveries.append(world.record_of(victim, victim["due"] + 5))
    return [of_command("unrecorded", victim)]


def wrong_checksum(chosen: random.Random, world: World) -> list[Found]:
    shard = chosen.choice(sorted(world.windows))
    victim = next(one for one in world.waiting() if one["shard"] == shard)
    world.keys(shard, taken=[victim])
    return [of_shard(shard)]


def wrong_checksum_of_a_file(chosen: random.Random, world: World) -> list[Found]:
    (entry,) = [one for one in world.entries if one["imported"]]
    entry["imported"][0]["checksum"] = f"{int(entry['imported'][0]['checksum'], 16) ^ 1 << chosen.randrange(64):016x}"
    return [of_shard(entry["shard"])]


def wrong_count(chosen: random.Random, world: World) -> list[Found]:
    shard = chosen.choice(sorted(world.windows))
    name: Any = chosen.choice(("accepted", "cancelled", "dead"))
    world.count(shard, **{name: chosen.choice((1, -1))})
    return [of_shard(shard)]


def wrong_pending(chosen: random.Random, world: World) -> list[Found]:
    shard = chosen.choice(sorted(world.windows))
    world.count(shard, pending=chosen.choice((1, -1)))
    return [of_shard(shard)]


def _cursors(world: World) -> dict[tuple[int, int], tuple[int, int, int]]:
    """What the cursor was before each entry."""
    after = {
        (one["shard"], one["n"] + 1): (one["cursor_due"], one["cursor_offset"], one["cursor_row"])
        for one in world.entries
        if one["n"] is not None
    }
    return {(shard, 0): (0, 0, 0) for shard in world.windows} | after


FAULTS: tuple[Failpoint, ...] = (
    drop, drop_an_imported_one, repeat, repeat_a_direct_one, early, early_copy, after_cancel, after_death,
    unknown_offset, unknown_row, unknown_shard, forged_due, replaced, of_a_repeat, no_id, wrong_topic, altered,
    altered_imported, altered_headers, altered_headers_of_an_imported_one, wrong_partition, out_of_order, wrong_due,
    wrong_due_after_a_move, wrong_attempt, lost_letter, stray_letter, letter_of_a_stranger, letter_of_another_shard,
    altered_letter, letter_for_another_topic, delivered_though_it_waits, unknown_though_it_waits, dead_though_it_waits,
    cancelled_though_it_waits, delivered_before_it_was, unknown_though_it_was_delivered, cancelled_twice,
    answered_for_nobody, known_without_a_first, cancelled_by_a_name_of_nothing, refused, refused_schedule,
    refused_name, unanswered, unanswered_name, malformed_accepted, answered_nothing, answered_twice, name_twice,
    repeat_of_nothing, repeat_of_another, conflict_with_itself, exchanged, overdue, unrecorded, wrong_checksum,
    wrong_checksum_of_a_file, wrong_count, wrong_pending, *OF_TERMS,
)  # fmt: skip
"""Each is put into a world of its own."""
TOGETHER: tuple[Failpoint, ...] = (
    drop, repeat, early, after_cancel, altered, altered_headers, wrong_topic, out_of_order, wrong_due, wrong_attempt,
    altered_letter, unknown_though_it_waits, refused, unanswered, name_twice, repeat_of_nothing, unknown_offset,
    wrong_partition, after_death, malformed_accepted, repeat_of_another,
)  # fmt: skip
"""All of these are put into one world."""
