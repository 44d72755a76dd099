"""Mutants of the audit's rules: each rule and condition is changed, and a fault is found no more, or too much is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit import violations
from duemq.pipeline.audit.checks import answers, places, run
from duemq.pipeline.audit.evidence import Gathered, Judged
from duemq.pipeline.audit.job import files_of, judge
from tests.support.audit.audit_faults import FAULTS
from tests.support.audit.audit_worlds import ELSEWHERE, World, Worlds, one_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

Patch = pytest.MonkeyPatch


def behind_the_range(chosen: random.Random, world: World) -> None:
    """No fault: what waits after the last entry is delivered later."""
    victim = world.take_command(chosen, world.waiting())
    world.deliveries.append(world.record_of(victim, victim["due"] + 3))


def unknown_before_it_was_there(chosen: random.Random, world: World) -> None:
    """No fault: a message of a file is unknown until the file is imported."""
    (file,) = [one for one in world.commands if one["kind"] == "import"]
    spare = [one for one in world.told("cancel", Answer.CANCELLED_BEFORE) if one["shard"] == file["shard"]]
    victim = world.take_command(chosen, spare)
    victim.update(first_due=file["window"] + 7, first_offset=file["offset"], first_row=7)
    world.answer((victim["shard"], victim["offset"]), Answer.UNKNOWN)


def elsewhere(chosen: random.Random, world: World) -> None:
    """No fault: a plain client has sent a name to a partition that it does not belong to."""
    answered = world.told("schedule", Answer.DUPLICATE)
    victim = world.take_command(chosen, [one for one in answered if one["plain"]])
    world.answer((victim["shard"], victim["offset"]), Answer.MALFORMED)
    victim["content"] += world.first * 1_000_003
    victim["name"] = ELSEWHERE
    world.letters.append(world.letter_of(victim))


def of_an_id(chosen: random.Random, world: World) -> None:
    """No fault that can be known: a plain client's id was called malformed."""
    spare = world.take_command(chosen, world.told("cancel", Answer.CANCELLED_BEFORE))
    spare["plain"] = True
    world.answer((spare["shard"], spare["offset"]), Answer.MALFORMED)
    spare["content"] += world.first * 1_000_003
    world.letters.append(world.letter_of(spare))


def accepted_behind_another(chosen: random.Random, world: World) -> None:
    """No fault: a message is behind one of its key that was due later, for it was sent when that one had left."""
    schedules, answers, pairs = world.schedules(), world.answers(), []
    keyed = sorted(
        (one for one in world.plain() if one["key_hash"] is not None),
        key=lambda one: (one["shard"], one["topic"], one["key_hash"], one["offset"]),
    )
    for cancel in world.told("cancel", Answer.CANCELLED_BEFORE):
        before = [
            one for one in world.entries
            if one["shard"] == cancel["shard"] and one["n"] < answers[cancel["shard"], cancel["offset"]]["entry"]["n"]
        ]  # fmt: skip
        cursor = max(((one["cursor_due"], one["cursor_offset"]) for one in before), default=(0, 0))
        pairs += [
            (cancel, one, two) for one, two in pairwise(keyed)
            if one["shard"] == two["shard"] == cancel["shard"]
            and all(one[name] == two[name] for name in ("topic", "key_hash"))
            and one["first_due"] < two["first_due"] and (two["first_due"], two["first_offset"]) <= cursor
        ]  # fmt: skip
    cancel, one, two = one_of(chosen, pairs)
    world.used |= {(one["shard"], one["first_offset"]), (two["shard"], two["first_offset"])}
    # It takes the place of a cancel in the log, which nobody misses.
    world.answer((cancel["shard"], cancel["offset"]), None)
    world.commands.remove(cancel)
    schedule = schedules[one["shard"], one["first_offset"]]
    schedule["offset"] = one["first_offset"] = cancel["offset"]
    one["offset"], two["offset"] = two["offset"], one["offset"]


HARMLESS: tuple[Callable[[random.Random, World], None], ...] = (
    behind_the_range, unknown_before_it_was_there, elsewhere, of_an_id, accepted_behind_another,
)  # fmt: skip


@dataclass
class Site:
    """Worlds that were judged, one for each fault, and others without one."""

    found: Gathered
    judged: Judged
    told: DataFrame


@pytest.fixture(scope="module")
def site(spark: SparkSession, real: Gathered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    worlds = Worlds(real, tmp_path_factory.mktemp("worlds"))
    for fault in (*FAULTS, *HARMLESS):
        fault(random.Random(fault.__name__), worlds.make())
    found = worlds.gathered(spark)
    judged = judge(spark, found.frames, found.extent, files_of(found.frames, found.frames.entries))
    judged.outcomes.cache()
    windows = run.windows_of(judged, found)
    told = answers.verdicts(found.frames.commands, judged.answers, judged.changes, windows, len(found.extent.windows))
    yield Site(found, judged, told.cache())
    judged.outcomes.unpersist()
    told.unpersist()


def of_messages(site: Site) -> set[tuple[Any, ...]]:
    """Violations of messages: with dead letters that are all there, and that may have been dropped."""
    found = set()
    for letters_from in (-1, 2**60):
        rows = violations.judged(site.judged.outcomes, letters_from).where("violated <> 0")
        found |= {
            (letters_from, row.shard, row.offset, row.row, row.violated)
            for row in rows.select("shard", "offset", "row", "violated").collect()
        }
    return found


def of_commands(site: Site) -> set[tuple[Any, ...]]:
    return {(row.kind, row.shard, row.offset, row.detail) for row in answers.violations(site.told).collect()}


def of_places(site: Site) -> set[tuple[Any, ...]]:
    found, judged = site.found, site.judged
    counts = [(one.topic, len(one.ends)) for one in found.ranges]
    partitions = found.frames.deliveries.sparkSession.createDataFrame(counts, "topic string, partitions int")
    rows = places.wrong_partitions(found.frames.deliveries, partitions).unionByName(
        places.out_of_order(found.frames.deliveries, judged.summary, judged.entries, run.windows_of(judged, found))
    )
    return {(row.kind, row.shard, row.offset) for row in rows.collect()}


@pytest.fixture(scope="module")
def reference(site: Site) -> dict[str, set[tuple[Any, ...]]]:
    return {"messages": of_messages(site), "commands": of_commands(site), "places": of_places(site)}


RULES: list[tuple[str, Any, Any, str, str]] = [
    *(("messages", of_messages, violations.RULES, name, "false") for name in violations.RULES),
    *(
        ("messages", of_messages, violations.CONDITIONS, name, text)
        for name in violations.CONDITIONS for text in ("false", "true")
    ),
    *(("commands", of_commands, answers.RULES, name, "false") for name in answers.RULES),
    *(("places", of_places, places.RULES, name, "false") for name in places.RULES),
    *(
        ("commands", of_commands, answers.RULES, "refused", f"kind <> 'malformed' AND answer = :malformed AND {but}")
        for but in ("NOT doubtful", "NOT elsewhere")
    ),
    ("places", of_places, places.RULES, "applied_then", "true"),
    ("places", of_places, places.RULES, "behind", "key > last_key"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "of", "table", "name", "text"), RULES, ids=[f"{one[3]} {one[4]}" for one in RULES])
def test_each_mutant_is_found(
    site: Site,
    reference: dict[str, set[tuple[Any, ...]]],
    monkeypatch: Patch,
    part: str,
    of: Any,
    table: dict[str, str],
    name: str,
    text: str,
) -> None:
    monkeypatch.setitem(table, name, text)
    assert of(site) != reference[part]


def test_what_is_no_fault_is_not_found(site: Site, reference: dict[str, set[tuple[Any, ...]]]) -> None:
    harmless = {2 * (len(FAULTS) + at) + side for at in range(len(HARMLESS)) for side in (0, 1)}
    assert [one for one in reference["messages"] if one[1] in harmless and one[0] == -1] == []
    assert [one for one in reference["commands"] if one[1] in harmless] == []
    assert [one for one in reference["places"] if one[1] in harmless] == []
