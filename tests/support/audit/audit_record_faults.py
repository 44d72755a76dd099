"""Faults in records and dead letters, as `audit_faults.py` has those of answers and the ledger."""

from __future__ import annotations

import random
from itertools import pairwise

from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT
from tests.support.audit.audit_worlds import NOBODYS, Found, Record, World, found, of_command

# --- records ----------------------------------------------------------------------------------------------------------


def drop(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    world.deliveries.remove(victim)
    return [found("lost", victim)]


def drop_an_imported_one(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _imported(world))
    world.deliveries.remove(victim)
    return [found("lost", victim)]


def repeat(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    late = chosen.randrange(9_000)
    world.deliveries.append(victim | {"offset": victim["offset"] + 500_000, "at": victim["at"] + late})
    return [found("twice", victim)]


def repeat_a_direct_one(chosen: random.Random, world: World) -> list[Found]:
    victim = chosen.choice([one for one in world.deliveries if one["shard"] == DIRECT])
    world.deliveries.append(victim | {"offset": 10**6})
    return [found("twice", victim)]


def early(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    victim["at"] = victim["first_due"] - chosen.choice((1, 1_000))
    return [found("early", victim)]


def early_copy(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    world.deliveries.append(victim | {"at": victim["first_due"] - 1, "offset": victim["offset"] + 500_000})
    return [found("twice", victim), found("early", victim)]


def after_cancel(chosen: random.Random, world: World) -> list[Found]:
    schedules = world.schedules()
    won = [
        schedules[one["shard"], one["first_offset"]] for one in world.told("cancel", Answer.OK)
        if (one["shard"], one["first_offset"]) in schedules and (one["shard"], one["first_offset"]) not in world.used
    ]  # fmt: skip
    victim = world.take_command(chosen, won)
    world.deliveries.append(world.record_of(victim, victim["due"] + 3))
    return [of_command("after_cancel", victim)]


def after_death(chosen: random.Random, world: World) -> list[Found]:
    letters = {(one["shard"], one["first_offset"]) for one in world.letters if one["shard"] is not None}
    delivered = {(one["shard"], one["first_offset"]) for one in world.deliveries}
    schedules = world.schedules()
    victim = world.take_command(chosen, [schedules[one] for one in sorted(letters - delivered - world.used)])
    world.deliveries.append(world.record_of(victim, victim["due"] + 3))
    return [of_command("after_death", victim)]


def unknown_offset(chosen: random.Random, world: World) -> list[Found]:
    forged = chosen.choice(world.plain()) | {"first_offset": 2**40 + chosen.randrange(9**9)}
    world.deliveries.append(forged)
    return [found("unknown_id", forged)]


def unknown_row(chosen: random.Random, world: World) -> list[Found]:
    forged = chosen.choice(_unkeyed(world)) | {"first_row": 5}
    world.deliveries.append(forged)
    return [found("unknown_id", forged)]


def unknown_shard(chosen: random.Random, world: World) -> list[Found]:
    forged = chosen.choice(world.plain()) | {"shard": NOBODYS + world.first // 2}
    world.deliveries.append(forged)
    return [found("unknown_id", forged)]


def forged_due(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    world.deliveries.append(victim | {"first_due": victim["first_due"] + 1, "mac": 1, "offset": 700_000})
    return [found("unknown_id", victim)]


def replaced(chosen: random.Random, world: World) -> list[Found]:
    """In place of its record there is one of another id."""
    victim = world.take(chosen, _unkeyed(world))
    victim["first_due"] += 1
    return [found("unknown_id", victim), found("lost", victim)]


def of_a_repeat(chosen: random.Random, world: World) -> list[Found]:
    answers = (Answer.DUPLICATE, Answer.CONFLICT)
    victim = world.take_command(chosen, [one for answer in answers for one in world.told("schedule", answer)])
    world.deliveries.append(world.record_of(victim, victim["due"] + 3))
    return [of_command("unknown_id", victim)]


def no_id(chosen: random.Random, world: World) -> list[Found]:
    none: Record = {"id": f"x{chosen.random()}", "shard": None, "first_offset": None, "first_due": None, "mac": None}
    world.deliveries.append(world.deliveries[0] | none | {"first_row": None, "key_hash": None})
    return [("unknown_id", -1, 0, 0)]


def wrong_topic(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _never_redriven(world, _unkeyed(world)))
    victim["topic"] = "nowhere"
    return [found("wrong_topic", victim)]


def altered(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    victim["content"] += 1
    return [found("altered", victim)]


def altered_imported(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _imported(world))
    victim["content"] += 1
    return [found("altered", victim)]


def altered_headers(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    victim["metadata"] -= 1
    return [found("altered_headers", victim)]


def altered_headers_of_an_imported_one(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _imported(world))
    victim["metadata"] -= 1
    return [found("altered_headers", victim)]


def wrong_partition(chosen: random.Random, world: World) -> list[Found]:
    keyed = [one for one in world.plain() if one["key_hash"] is not None and one["topic"] == "orders"]
    victim = world.take(chosen, [one for one in keyed if _is_behind_all_partitions(world, one)])
    victim["partition"] = (victim["partition"] + chosen.choice((1, 2))) % 3
    victim["offset"] += 800_000
    return [found("wrong_partition", victim)]


def out_of_order(chosen: random.Random, world: World) -> list[Found]:
    """Two records of one key, shard and topic are in each other's places."""
    keyed = sorted(
        (one for one in world.plain() if one["key_hash"] is not None),
        key=lambda one: (one["shard"], one["topic"], one["key_hash"], one["offset"]),
    )
    pairs = [
        (one, two) for one, two in pairwise(keyed)
        if all(one[name] == two[name] for name in ("shard", "topic", "key_hash"))
    ]  # fmt: skip
    one, two = chosen.choice(pairs)
    world.used |= {(each["shard"], each["first_offset"]) for each in (one, two)}
    one["offset"], two["offset"] = two["offset"], one["offset"]
    return [found("out_of_order", one)]


def wrong_due(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    victim["due"] = chosen.choice((None, victim["due"] + 1, 0))
    return [found("wrong_due", victim)]


def wrong_due_after_a_move(chosen: random.Random, world: World) -> list[Found]:
    moved = {(one["shard"], one["first_offset"]) for one in world.told("move", Answer.OK)}
    records = [one for one in world.deliveries if (one["shard"], one["first_offset"]) in moved - world.used]
    victim = world.take(chosen, records)
    victim["due"] = victim["first_due"]
    return [found("wrong_due", victim)]


def wrong_attempt(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, world.plain())
    victim["attempt"] = chosen.choice((None, 0, 2))
    return [found("wrong_attempt", victim)]


def _unkeyed(world: World) -> list[Record]:
    return [one for one in world.plain() if one["key_hash"] is None]


def _imported(world: World) -> list[Record]:
    (file,) = [one for one in world.commands if one["kind"] == "import"]
    place = file["shard"], file["offset"]
    return [one for one in world.deliveries if (one["shard"], one["first_offset"]) == place and place not in world.used]


def _is_behind_all_partitions(world: World, record: Record) -> bool:
    """Whether its topic had a record in its last partition before it: then it had that partition already."""
    last = [one["at"] for one in world.deliveries if (one["topic"], one["partition"]) == ("orders", 2)]
    return bool(last) and min(last) < record["at"] - 1


# --- dead letters -----------------------------------------------------------------------------------------------------


def _letters(world: World) -> list[Record]:
    return [
        one for one in world.letters
        if one["shard"] is not None and (one["shard"], one["first_offset"]) not in world.used
    ]  # fmt: skip


def _never_redriven(world: World, records: list[Record]) -> list[Record]:
    """Those of messages that went where they were sent: a redrive may name another topic."""
    redriven = {(one["shard"], one["first_offset"]) for one in world.commands if one["kind"] == "redrive"}
    return [one for one in records if (one["shard"], one["first_offset"]) not in redriven]


def lost_letter(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _letters(world))
    world.letters.remove(victim)
    return [found("lost_letter", victim)]


def stray_letter(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _letters(world))
    world.letters.append(victim | {"offset": 10**6, "at": victim["at"] - 1})
    return [found("stray_letter", victim)]


def letter_of_another_shard(chosen: random.Random, world: World) -> list[Found]:
    """The letter of a malformed record speaks of a partition in which nothing was malformed."""
    victim = world.take_command(chosen, world.told("malformed", Answer.MALFORMED))
    letter = next(
        one for one in world.letters
        if (one["command"], one["command_shard"]) == (victim["offset"], victim["shard"])
    )  # fmt: skip
    other = next(shard for shard in world.windows if shard != victim["shard"])
    letter.update(command_shard=other, at=world.windows[other].ended_at - 1)
    return [of_command("lost_letter", victim), ("stray_letter", other, victim["offset"], 0)]


def letter_of_a_stranger(chosen: random.Random, world: World) -> list[Found]:
    victim = chosen.choice(_letters(world)) | {"first_row": 9, "offset": 10**6 + 1}
    world.letters.append(victim)
    return [found("unknown_id", victim)]


def altered_letter(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _letters(world))
    victim.update(chosen.choice(({"content": 7}, {"metadata": 7})))
    return [found("altered_letter", victim)]


def letter_for_another_topic(chosen: random.Random, world: World) -> list[Found]:
    victim = world.take(chosen, _never_redriven(world, _letters(world)))
    victim["destination"] = "other"
    return [found("altered_letter", victim)]
