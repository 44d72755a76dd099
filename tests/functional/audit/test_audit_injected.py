"""Faults put into a real history, each into a copy of its own: exactly these are found, each as what it is."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.evidence import Extent, Gathered
from duemq.pipeline.audit.job import conclude, files_of, judge
from tests.support.audit.audit_faults import FAULTS, TOGETHER, Failpoint
from tests.support.audit.audit_site import IMPORTED
from tests.support.audit.audit_worlds import Found, Worlds
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

SEEDS = range(3)


@pytest.fixture(scope="module")
def judged(
    spark: SparkSession, real: Gathered, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, tuple[list[Found], list[Found]]], str]]:
    """Per fault and seed what was put in and what was found, of one audit over all; and the details, for a failure."""
    worlds = Worlds(real, tmp_path_factory.mktemp("worlds"))
    put_in: dict[int, tuple[str, list[Found]]] = {}

    def world(name: str, seed: int, *faults: Failpoint) -> None:
        chosen, made = random.Random(f"{name} {seed}"), worlds.make()
        expected = [one for fault in faults for one in fault(chosen, made)]
        put_in[len(worlds.made) - 1] = f"{name} {seed}", expected

    world("nothing", 0)
    for fault in FAULTS:
        for seed in SEEDS:
            world(fault.__name__, seed, fault)
    for seed in SEEDS:
        world("together", seed, *TOGETHER)
    found = worlds.gathered(spark)
    out = tmp_path_factory.mktemp("judged")
    result = conclude(spark, found, out)
    assert not result.clean
    by_world: dict[int, list[Found]] = defaultdict(list)
    details = []
    for row in spark.read.parquet(str(out / "violations")).collect():
        violation = (
            row.kind, row.shard, -1 if row.offset is None else row.offset if row.shard >= 0 else 0,
            -1 if row.row is None else row.row,
        )  # fmt: skip
        by_world[worlds.world_of(violation)].append(violation)
        details.append(f"{put_in.get(worlds.world_of(violation), ('nobody', []))[0]}: {row}")
    # Records whose id is none are of no shard.
    of_nobody = by_world.pop(-1, [])
    expected = [one for _, said in put_in.values() for one in said if one[1] < 0]
    assert sorted(of_nobody) == sorted(expected)
    yield (
        {
            name: (sorted(one for one in said if one[1] >= 0), sorted(by_world[number]))
            for number, (name, said) in put_in.items()
        },
        "\n".join(sorted(details)),
    )


def test_there_are_enough_kinds_of_faults() -> None:
    assert len({fault.__name__ for fault in FAULTS}) == len(FAULTS) >= 50 and len(TOGETHER) >= 11


@pytest.mark.parametrize("name", [f"{fault.__name__} {seed}" for fault in FAULTS for seed in SEEDS])
def test_exactly_what_was_put_in_is_found(
    judged: tuple[dict[str, tuple[list[Found], list[Found]]], str], name: str
) -> None:
    expected, found = judged[0][name]
    assert found == expected, "\n".join(line for line in judged[1].splitlines() if line.startswith(name))


@pytest.mark.parametrize("name", ["nothing 0", *(f"together {seed}" for seed in SEEDS)])
def test_nothing_and_many_at_once(judged: tuple[dict[str, tuple[list[Found], list[Found]]], str], name: str) -> None:
    expected, found = judged[0][name]
    assert found == expected, "\n".join(line for line in judged[1].splitlines() if line.startswith(name))


def test_a_file_that_is_gone(spark: SparkSession, real: Gathered) -> None:
    (file,) = files_of(real.frames, real.frames.entries)
    gone = replace(file, why_not="No such file or directory")

    def counts(extent: Extent) -> dict[str, int]:
        table = judge(spark, real.frames, extent, [gone]).outcomes.where(F.col("offset") == file.offset)
        return {
            row.outcome: row["count"]
            for row in table.where(F.col("shard") == file.shard).groupBy("outcome").count().collect()
        }

    assert counts(real.extent) == {"pending": IMPORTED - 2, "delivered": 1, "cancelled": 1}
    window = real.extent.windows[file.shard]

    def at(due: int) -> Extent:
        return replace(real.extent, windows={**real.extent.windows, file.shard: replace(window, cursor=(due, 0, 0))})

    assert counts(at(file.window + 5)) == {"unproven": IMPORTED - 2, "delivered": 1, "cancelled": 1}
    assert counts(at(file.window + WINDOW_MS)) == {"lost": IMPORTED - 2, "delivered": 1, "cancelled": 1}
    not_all = replace(at(file.window + WINDOW_MS), anywhere_from=None)
    assert counts(not_all) == {"unproven": IMPORTED - 2, "delivered": 1, "cancelled": 1}


def test_a_file_that_is_gone_is_told(spark: SparkSession, real: Gathered, tmp_path: Path) -> None:
    """Its messages are counted all the same, and that is said."""
    worlds = Worlds(real, tmp_path)
    worlds.make()
    (tmp_path / "0.parquet").unlink()
    result = conclude(spark, worlds.gathered(spark), tmp_path / "out")
    assert result.clean, result.shown
    assert any("its 40 messages are counted" in note for note in result.notes)
    assert result.account["pending"] >= IMPORTED - 2
