"""Faults in what follows from terms, expiries and retries, as `audit_faults.py` has those of answers and the ledger."""

from __future__ import annotations

import random

from duemq.model.log.ledger import Answer
from duemq.model.messages.key import CHECKSUM_MASK, checksum, make_key
from tests.support.audit.audit_worlds import Found, Record, World, found, of_command, one_of

_YEARS_MS = 10 * 31_557_600_000

# --- answers ----------------------------------------------------------------------------------------------------------


def told_of_a_waiting_message(chosen: random.Random, world: World, answer: Answer) -> list[Found]:
    """A cancel that came too late is one of a message that waits, and its answer this one."""
    spare = {one["shard"]: one["offset"] for one in world.told("cancel", Answer.CANCELLED_BEFORE)}
    waiting = [one for one in world.waiting() if one["shard"] in spare and one["offset"] < spare[one["shard"]]]
    return told_of(chosen, world, world.take_command(chosen, waiting), answer)


def told_of(
    chosen: random.Random, world: World, of: Record, answer: Answer, tag: str | None = None, kind: str = "cancel"
) -> list[Found]:
    """A cancel that came too late is a command about another message, and its answer this one."""
    shard = of["shard"]
    spare = [one for one in world.told("cancel", Answer.CANCELLED_BEFORE) if one["shard"] == shard]
    victim = world.take_command(chosen, spare)
    world.used.add((shard, of["offset"]))
    victim.update(first_due=of["due"], first_offset=of["offset"], first_row=0, tag=tag, kind=kind)
    if kind != "cancel":
        victim["due"] = victim["at"]
    world.answer((shard, victim["offset"]), answer)
    return [of_command("false_answer", of)]


def repeated_without_a_tag(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.REPEATED)


def changed_before_without_a_tag(chosen: random.Random, world: World) -> list[Found]:
    return told_of_a_waiting_message(chosen, world, Answer.CHANGED_BEFORE)


def repeated_by_another_job(chosen: random.Random, world: World) -> list[Found]:
    """The step of a job is a repeat, it is said, of what another step has done."""
    cancels = [
        one for one in world.told("cancel", Answer.OK) if (one["shard"], one["first_offset"]) in world.schedules()
    ]
    spare = {one["shard"] for one in world.told("cancel", Answer.CANCELLED_BEFORE)}
    first = world.take_command(chosen, [one for one in cancels if one["shard"] in spare and not one["plain"]])
    first["tag"] = "a/1"
    of = world.schedules()[first["shard"], first["first_offset"]]
    later = [one for one in world.told("cancel", Answer.CANCELLED_BEFORE) if one["shard"] == first["shard"]]
    victim = one_of(chosen, [one for one in later if one["offset"] > first["offset"]])
    world.used |= {(of["shard"], of["offset"]), (victim["shard"], victim["offset"])}
    victim.update(first_due=of["due"], first_offset=of["offset"], first_row=0, tag="b/1")
    world.answer((victim["shard"], victim["offset"]), Answer.REPEATED)
    return [of_command("false_answer", of)]


def _dead(world: World) -> list[Record]:
    """Schedules of messages that died once."""
    letters = {(one["shard"], one["first_offset"]) for one in world.letters if one["shard"] is not None}
    delivered = {(one["shard"], one["first_offset"]) for one in world.deliveries}
    spare = {one["shard"] for one in world.told("cancel", Answer.CANCELLED_BEFORE)}
    schedules = world.schedules()
    return [schedules[one] for one in sorted(letters - delivered - world.used) if one[0] in spare]


def purged_without_a_purge(chosen: random.Random, world: World) -> list[Found]:
    """A redrive of a dead letter was told that it had been purged."""
    return _redrive_answered(chosen, world, Answer.PURGED)


def exhausted_without_a_redrive(chosen: random.Random, world: World) -> list[Found]:
    return _redrive_answered(chosen, world, Answer.EXHAUSTED)


def _redrive_answered(chosen: random.Random, world: World, answer: Answer) -> list[Found]:
    return told_of(chosen, world, one_of(chosen, _dead(world)), answer, kind="redrive")


# --- deaths, deferrals and expiries -----------------------------------------------------------------------------------


def _delivered(chosen: random.Random, world: World) -> tuple[Record, Record]:
    """The record and schedule of a message that nothing was done to, and that has no name."""
    schedules = world.schedules()
    some = [one for one in world.plain() if schedules[one["shard"], one["first_offset"]]["name"] is None]
    victim = world.take(chosen, some)
    return victim, schedules[victim["shard"], victim["first_offset"]]


def _put_off(world: World, schedule: Record, **more: object) -> None:
    """Have the ledger say so in the entry that passes a message."""
    key = schedule["due"], schedule["offset"], 0
    passing = [
        one for one in world.entries
        if one["shard"] == schedule["shard"] and one["n"] is not None
        and (one["cursor_due"], one["cursor_offset"], one["cursor_row"]) >= key
    ]  # fmt: skip
    entry = min(passing, key=lambda one: int(one["n"]))
    of = {"due": schedule["due"], "offset": schedule["offset"], "row": 0, "attempt": 1}
    to = dict.fromkeys(("to_due", "to_offset", "to_row"))
    entry["deferred"] = [*(entry["deferred"] or ()), of | to | more]


def _bury(world: World, victim: Record, schedule: Record, reason: str) -> None:
    """In place of its record there is a dead letter."""
    world.deliveries.remove(victim)
    _put_off(world, schedule, reason=reason)
    letter = next(one for one in world.letters if one["shard"] is not None)
    world.letters.append(letter | {
        "shard": schedule["shard"], "first_due": schedule["due"], "first_offset": schedule["offset"], "first_row": 0,
        "due": schedule["due"], "content": schedule["content"], "metadata": schedule["metadata"],
        "destination": schedule["topic"], "reason": reason, "attempt": 1, "offset": 950_000 + schedule["offset"],
        "at": victim["at"], "shortened": False, "mac": victim["mac"], "command": None, "command_shard": None,
    })  # fmt: skip
    world.count(schedule["shard"], delivered=-1, dead=1)


def expired_without_an_expiry(chosen: random.Random, world: World) -> list[Found]:
    victim, schedule = _delivered(chosen, world)
    assert schedule["expires"] == 0
    _bury(world, victim, schedule, "expired")
    return [of_command("wrong_death", schedule)]


def expired_before_its_expiry(chosen: random.Random, world: World) -> list[Found]:
    victim, schedule = _delivered(chosen, world)
    schedule["expires"] = schedule["due"] + 86_400_000
    _bury(world, victim, schedule, "expired")
    return [of_command("wrong_death", schedule)]


def put_off_for_years(chosen: random.Random, world: World) -> list[Found]:
    victim, schedule = _delivered(chosen, world)
    _put_off_to(world, victim, schedule, later=schedule["due"] + _YEARS_MS, attempt=1)
    return [of_command("wrong_deferral", schedule)]


def put_off_at_another_attempt(chosen: random.Random, world: World) -> list[Found]:
    victim, schedule = _delivered(chosen, world)
    _put_off_to(world, victim, schedule, later=schedule["due"] + 3_600_000, attempt=7)
    return [of_command("wrong_deferral", schedule)]


def _put_off_to(world: World, victim: Record, schedule: Record, later: int, attempt: int) -> None:
    """It waits, in place of its record."""
    world.deliveries.remove(victim)
    to = {"to_due": later, "to_offset": schedule["offset"], "to_row": 0}
    _put_off(world, schedule, **to, attempt=attempt, reason="unknown_topic")
    world.count(schedule["shard"], delivered=-1, pending=1)
    entries = [one for one in world.entries if one["shard"] == schedule["shard"] and one["n"] is not None]
    last = max(entries, key=lambda one: int(one["n"]))
    total = int(last["checksum"], 16) + checksum([make_key(later, schedule["offset"], 0)])
    last["checksum"] = f"{total & CHECKSUM_MASK:016x}"


def after_expiry(chosen: random.Random, world: World) -> list[Found]:
    victim, schedule = _delivered(chosen, world)
    schedule["expires"] = schedule["due"] + 1
    victim["at"] += 3_600_000
    return [found("after_expiry", victim)]


def letter_with_another_reason(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, [one for one in world.letters if one["shard"] is not None])
    victim["reason"] = "by hand"
    return [found("altered_letter", victim)]


FAULTS = (
    repeated_without_a_tag, changed_before_without_a_tag, repeated_by_another_job, purged_without_a_purge,
    exhausted_without_a_redrive, expired_without_an_expiry, expired_before_its_expiry, put_off_for_years,
    put_off_at_another_attempt, after_expiry, letter_with_another_reason,
)  # fmt: skip
