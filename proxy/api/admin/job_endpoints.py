"""The endpoints for bulk jobs and for dead letters in topics, which are part of the table of all endpoints
(`proxy/table.py`)."""

from __future__ import annotations

from typing import Final

from duemq.model.callers.access import Scope
from duemq.proxy.api.admin import dead_letters, job_shapes, jobs
from duemq.proxy.api.endpoint import Endpoint, Parameter, ResponseSpec
from duemq.proxy.request.query import DEFAULT_LIMIT, MAX_LIMIT

_DOWN: Final = ("unavailable", "disk_full")
_TOLD: Final = ("unknown_job", "job_ended", "conflict", "not_supported", *_DOWN)
_JOB: Final = ResponseSpec("The current state of the job.", job_shapes.Job)
_IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key", "A repeat with the same key and body gets the first job, while it is known.",
    {"type": "string", "minLength": 1, "maxLength": 255}, "header",
)  # fmt: skip
_PAGE: Final = (
    Parameter("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    Parameter("cursor", "From the previous page.", {"type": "string"}),
)
_NOTES: Final = """\
A job applies to the messages that match at its creation, and handles each once, even if processes are killed. Redrives
and purges apply to dead letters, the other kinds to pending messages, which also need the scope `cancel`."""

JOB_ENDPOINTS: Final = (
    Endpoint(
        "GET", "/v1/jobs", jobs.list_jobs, "List bulk jobs", "jobs",
        {200: ResponseSpec("The known jobs, newest first.", job_shapes.JobList)},
        ("not_supported", "unavailable"), scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/jobs", jobs.post_job, "Create a bulk job", "jobs",
        {201: ResponseSpec("Created. It continues even if this server stops.", job_shapes.Job,
                           {"Location": "Where to look."}),
         200: ResponseSpec("A dry run: how many it would apply to; or the job created with this Idempotency-Key.",
                           job_shapes.DryRunOrJob)},
        ("bad_json", "bad_field", "unknown_field", "bad_topic", "unknown_topic", "bad_time", "naive_time", "both_times",
         "negative_delay", "delay_too_long", "past_due", "clock_out_of_bounds", "batch_too_large", "too_many_jobs",
         "not_supported", "idempotency_conflict", *_DOWN),
        (_IDEMPOTENCY_KEY,), job_shapes.JobRequest, notes=_NOTES,
        examples={
            "redrive what died in an hour": {
                "kind": "redrive", "rate": 2000,
                "filter": {"topic": "orders", "dead_from": "2026-11-21T10:00:00Z", "dead_to": "2026-11-21T11:00:00Z"}},
            "count what would be cancelled": {"kind": "cancel", "dry_run": True, "filter": {"label": "reminder"}},
        },
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "GET", "/v1/jobs/{id}", jobs.get_job, "Look a bulk job up", "jobs", {200: _JOB},
        ("unknown_job", "not_supported", "unavailable"), scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/jobs/{id}:pause", jobs.pause_job, "Pause a bulk job", "jobs", {200: _JOB}, _TOLD,
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/jobs/{id}:resume", jobs.resume_job, "Resume a bulk job", "jobs", {200: _JOB}, _TOLD,
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/jobs/{id}:cancel", jobs.cancel_job, "Cancel a bulk job", "jobs", {200: _JOB}, _TOLD,
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "GET", "/v1/dlq/topics/{topic}", dead_letters.list_topic, "List the dead letters in a topic", "dead letters",
        {200: ResponseSpec("A page, without payloads, partition by partition.", job_shapes.TopicLetters)},
        ("bad_topic", "unknown_topic", "bad_query", "bad_cursor", *_DOWN), _PAGE, scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/dlq/topics/{topic}/{place}", dead_letters.show_record, "Look a dead letter in a topic up",
        "dead letters", {200: ResponseSpec("All of it.", job_shapes.TopicLetter)},
        ("bad_topic", "unknown_topic", "unknown_message", *_DOWN), scope=Scope.READ,
    ),
)  # fmt: skip
