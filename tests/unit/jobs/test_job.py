"""A job as a value: its states, its counts, and its way into the administrative state and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.log.job import ENDED, MAX_REASONS, Job, JobEvent, JobState, Order, PlanPosition, is_id, new_id
from duemq.model.messages.row_notes import same_job
from duemq.model.state_table import IllegalStep
from duemq.proxy.jobs.pacer import Pacer

JOB = Job("a" * 12, Order("redrive", {"dead_from": 5}, 2000.0), 7, "me", 3, PlanPosition(3))


@given(st.lists(st.sampled_from(list(JobEvent)), max_size=6))
def test_a_job_that_has_ended_stays_so(events: list[JobEvent]) -> None:
    job = JOB
    for event in events:
        before = job
        try:
            job = job.after(event, 9)
        except IllegalStep:
            continue
        assert before.state not in ENDED
        assert (job.ended_at == 9) == (job.state in ENDED)


outcomes = st.lists(
    st.tuples(st.sampled_from(["done", "skipped", "failed"]), st.sampled_from([f"r{n}" for n in range(40)])),
    max_size=99,
)


@given(st.lists(outcomes, max_size=5))
def test_every_entry_is_counted_once_and_reasons_are_bounded(batches: list[list[tuple[str, str]]]) -> None:
    job = JOB
    for at, batch in enumerate(batches):
        job = job.with_outcomes(Counter(batch), PlanPosition(3, 0, at))
    everything = [one for batch in batches for one in batch]
    assert job.counted == len(everything)
    assert job.done == sum(what == "done" for what, _ in everything)
    assert sum(job.failed.values()) == sum(what == "failed" for what, _ in everything)
    assert len(job.skipped) <= MAX_REASONS + 1 and len(job.failed) <= MAX_REASONS + 1
    assert Job.from_value(orjson.loads(orjson.dumps(job.value()))) == job


def test_a_job_needs_work_until_all_that_was_begun_is_counted() -> None:
    cancelled = JOB.after(JobEvent.CANCEL, 9)
    assert JOB.needs_work and not cancelled.needs_work
    begun = Job.from_value(cancelled.value() | {"claimed": 3})
    assert begun.needs_work and begun.state is JobState.CANCELLED
    assert not begun.with_outcomes(Counter({("done", ""): 2, ("failed", "x"): 1}), PlanPosition(3)).needs_work


def test_tags_tell_job_and_step() -> None:
    id_ = new_id(1_795_255_200_000)
    other = Job(id_, JOB.order, 7, "me", 3, PlanPosition(3))
    assert is_id(id_) and other.tag(4) == f"{id_}/4"
    assert same_job(other.tag(4), other.tag(5)) and not same_job(other.tag(4), JOB.tag(4))
    assert not same_job("", other.tag(1))


@given(st.lists(st.integers(0, 2**45 - 1), unique=True, max_size=20))
def test_ids_of_jobs_are_in_the_order_of_their_beginning(times: list[int]) -> None:
    ids = [new_id(time) for time in sorted(times)]
    assert ids == sorted(ids) and all(map(is_id, ids))


@pytest.mark.parametrize("rate", [0.5, 30.0, 2000.0, 50_000.0])
def test_a_pace_is_steady_and_catches_up_with_a_second_at_most(rate: float) -> None:
    pacer, now, sent = Pacer(rate, 100.0), 100.0, 0
    assert 1 <= pacer.batch <= max(rate * 0.05, 1)
    while now < 200.0:
        now += pacer.wait(pacer.batch, now)
        sent += pacer.batch
    assert abs(sent - 100 * rate) <= max(0.001 * 100 * rate, 2 * pacer.batch)
    now += 60.0  # nothing went for a minute
    late = 0
    while pacer.wait(pacer.batch, now) == 0:
        late += pacer.batch
    assert late <= rate + 2 * pacer.batch


def test_without_a_rate_nothing_waits() -> None:
    assert Pacer(None, 0.0).wait(10**9, 0.0) == 0.0


def test_an_older_version_cannot_read_a_job_whose_prefix_it_would_pass_over() -> None:
    """To it such a filter would mean all messages."""
    assert "caller" not in JOB.value()["order"]
    job = replace(JOB, order=Order("cancel", {"topic_prefix": "orders."}, caller=""))
    assert job.value()["order"]["caller"] == ""
    assert Job.from_value(orjson.loads(orjson.dumps(job.value()))) == job
