"""The endpoints of bulk jobs and of dead letters in topics: part of the one table (`proxy/table.py`)."""

from __future__ import annotations

from typing import Final

from duemq.model.callers.access import Scope
from duemq.proxy.api.admin import dead_letters, job_shapes, jobs
from duemq.proxy.api.endpoint import Endpoint, Parameter, ResponseSpec
from duemq.proxy.request.query import DEFAULT_LIMIT, MAX_LIMIT

_DOWN: Final = ("unavailable", "disk_full")
_TOLD: Final = ("unknown_job", "job_ended", "conflict", "not_supported", *_DOWN)
_JOB: Final = ResponseSpec("The job as it is now.", job_shapes.Job)
_IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key", "The same key with the same body again is answered with the first job, while it is known.",
    {"type": "string", "minLength": 1, "maxLength": 255}, "header",
)  # fmt: skip
_PAGE: Final = (
    Parameter("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    Parameter("cursor", "From the page before.", {"type": "string"}),
)
_NOTES: Final = """\
A job applies to what matches when it is begun, and does each message once, also where processes are killed. Redrives
and purges are of dead letters, the other kinds of pending messages; these need the scope `cancel` besides."""

JOB_ENDPOINTS: Final = (
    Endpoint(
        "GET", "/v1/jobs", jobs.list_jobs, "List bulk jobs", "jobs",
        {200: ResponseSpec("Those that are known, the newest first.", job_shapes.JobList)},
        ("not_supported", "unavailable"), scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/jobs", jobs.post_job, "Begin a bulk job", "jobs",
        {201: ResponseSpec("It is begun, and goes on whatever becomes of this server.", job_shapes.Job,
                           {"Location": "Where to look."}),
         200: ResponseSpec("A dry run: how many it would apply to; or the job that this Idempotency-Key began.",
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
