"""Jobs and answers between a server and its processes: both ends read the same, or a wrong field is named."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.storage.delay_files.about import About
from duemq.storage.jobs import jobs
from duemq.storage.jobs.jobs import (
    BadJob,
    ImportFailure,
    ImportFile,
    ImportJob,
    ImportSuccess,
    InspectionFailure,
    InspectionResult,
    JobFile,
    LoadJob,
    ReadProgress,
    RewriteJob,
    SealJob,
)
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore

text, number = st.text(max_size=20), st.integers(0, 1 << 53)
about = st.builds(About, number, number, number, text, text, text, number, st.none() | number)
files = st.lists(st.builds(JobFile, text, about), max_size=3)
tiering = st.one_of(
    st.builds(SealJob, text, number, st.lists(st.tuples(number, text), max_size=3)),
    st.builds(LoadJob, files, text, text, text),
    st.builds(RewriteJob, number, text, text, st.lists(st.tuples(number, text, files), max_size=3)),
)
limits = st.builds(ImportLimits, number, number, number, number, st.lists(text, max_size=2).map(tuple))
importing = st.builds(
    ImportJob, limits=limits, folders=st.lists(text, max_size=2), prefixes=st.lists(text, max_size=2),
    store=st.builds(ObjectStore, text, text, text, text, text), inspect=st.none() | text,
    files=st.lists(
        st.builds(ImportFile, text, text, number, number, number, number, number, text, st.booleans()), max_size=2
    ),
)  # fmt: skip


def plain(message: Any) -> Any:
    """Lists for tuples, as JSON has them."""
    return orjson.loads(orjson.dumps(asdict(message)))


@given(tiering)
def test_a_tiering_job_comes_out_as_it_went_in(job: jobs.TieringJob) -> None:
    out = jobs.tiering_job(orjson.loads(jobs.encode(job)))
    assert type(out) is type(job) and plain(out) == plain(job)


@given(importing)
def test_an_import_job_comes_out_as_it_went_in(job: ImportJob) -> None:
    out = jobs.import_job(orjson.loads(jobs.encode(job)))
    assert plain(out) == plain(job) and out.limits == job.limits and out.store == job.store


@given(st.one_of(st.builds(ReadProgress, number), st.builds(ImportSuccess, about, number),
                 st.builds(ImportFailure, text, st.booleans(), st.booleans(), st.booleans(), text)))  # fmt: skip
def test_an_answer_to_an_import_comes_out_as_it_went_in(answer: jobs.ImportAnswer) -> None:
    assert jobs.import_answer(jobs.encode(answer)) == answer


@given(st.one_of(st.builds(InspectionResult, number, number, number, number, number, text, text),
                 st.builds(InspectionFailure, text, st.none() | number, st.none() | text, st.booleans())))  # fmt: skip
def test_an_answer_to_an_inspection_comes_out_as_it_went_in(answer: jobs.InspectAnswer) -> None:
    assert jobs.inspect_answer(jobs.encode(answer)) == answer


@given(st.lists(st.none() | about, max_size=3))
def test_answers_of_sealing_come_out_as_they_went_in(answers: list[About | None]) -> None:
    assert jobs.abouts_of(orjson.loads(jobs.encode(answers))) == answers


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"work": "nothing"}, "nothing is no work"),
        ([], "None is no work"),
        ({"work": "seal", "checkpoint": "c", "shard": 0}, "SealJob.*windows"),
        ({"work": "seal", "checkpoint": "c", "shard": 0, "windows": [], "more": 1}, "SealJob: it has no field more"),
        ({"work": "load", "files": [{"path": "p"}], "secret": "", "dropped": "", "sst": ""}, "JobFile.*about"),
    ],
)
def test_a_wrong_field_is_named(document: Any, named: str) -> None:
    with pytest.raises(BadJob, match=named):
        jobs.tiering_job(document)


def test_a_line_that_is_no_answer_is_refused() -> None:
    with pytest.raises(BadJob, match="not an answer"):
        jobs.import_answer(b"[]")
    with pytest.raises(BadJob, match=r"ImportFailure.*reason"):
        jobs.import_answer(b'{"final": true}')
