"""Errors as problem documents (RFC 9457): every code of the API, its HTTP status and its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from starlette.responses import Response

from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:duemq:problem:"


class ProblemType(NamedTuple):
    status: int
    title: str


CODES: Final[Mapping[str, ProblemType]] = {
    "missing_topic": ProblemType(400, "The message names no topic"),
    "bad_topic": ProblemType(400, "Not the name of a topic"),
    "bad_field": ProblemType(400, "A field has a wrong value"),
    "unknown_field": ProblemType(400, "Unknown field"),
    "bad_header": ProblemType(400, "A header has a wrong name or value"),
    "bad_json": ProblemType(400, "The body is not the expected JSON"),
    "unexpected_body": ProblemType(400, "A body is not expected here"),
    "bad_query": ProblemType(400, "A query parameter has a wrong name or value"),
    "bad_cursor": ProblemType(400, "Not a cursor of this list or topic"),
    "not_indexed": ProblemType(409, "Messages of this topic are not indexed"),
    "both_times": ProblemType(400, "More than one time field"),
    "bad_time": ProblemType(400, "Not a time or a duration"),
    "naive_time": ProblemType(400, "A time without a zone"),
    "negative_delay": ProblemType(400, "A negative delay"),
    "delay_too_long": ProblemType(400, "Too far ahead"),
    "past_due": ProblemType(400, "The time has passed"),
    "bad_level": ProblemType(400, "Not a delay level"),
    "both_payloads": ProblemType(400, "More than one payload"),
    "bad_base64": ProblemType(400, "Not base64"),
    "needs_key": ProblemType(400, "The topic takes only messages with a key"),
    "malformed_request": ProblemType(400, "Not a request of HTTP/1.1"),
    "unauthorised": ProblemType(401, "No valid API key"),
    "forbidden": ProblemType(403, "Not allowed"),
    "foreign_origin": ProblemType(403, "Sent by a page of another site"),
    "unknown_message": ProblemType(404, "No such message"),
    "unknown_topic": ProblemType(404, "No such topic"),
    "unknown_key": ProblemType(404, "No such API key"),
    "unknown_node": ProblemType(404, "No such node"),
    "not_found": ProblemType(404, "No such path"),
    "method_not_allowed": ProblemType(405, "Method not allowed on this path"),
    "already_delivered": ProblemType(409, "Too late: already delivered"),
    "already_cancelled": ProblemType(409, "Too late: already cancelled"),
    "unknown_import": ProblemType(404, "No such import"),
    "no_ids": ProblemType(409, "The file is not imported, or no longer kept"),
    "already_dead": ProblemType(409, "Too late: in the dead letters"),
    "redrives_exhausted": ProblemType(409, "No redrives left"),
    "already_purged": ProblemType(409, "Too late: purged from the dead letters"),
    "unknown_job": ProblemType(404, "No such job"),
    "job_ended": ProblemType(409, "The job has ended"),
    "too_many_jobs": ProblemType(409, "Too many jobs at a time"),
    "unknown_destination": ProblemType(404, "No such destination"),
    "destination_exists": ProblemType(409, "A destination of this name exists"),
    "too_many_destinations": ProblemType(409, "Too many destinations"),
    "unknown_group": ProblemType(404, "No such group"),
    "too_many_groups": ProblemType(409, "Too many groups"),
    "lease_ended": ProblemType(409, "Too late: the lease has ended"),
    "too_many_leases": ProblemType(409, "All messages in hand are leased"),
    "conflict": ProblemType(409, "Changed by another caller at the same time"),
    "consumer_in_use": ProblemType(409, "Another process uses this consumer's name"),
    "too_many_consumers": ProblemType(409, "The caller has too many consumer names"),
    "needs_admin": ProblemType(409, "The first API key is an admin's"),
    "unconfirmed": ProblemType(409, "Needs confirmation"),
    "name_conflict": ProblemType(409, "The name belongs to another message"),
    "not_supported": ProblemType(409, "Not possible on this server"),
    "name_taken": ProblemType(412, "The name is taken"),
    "unsupported_media_type": ProblemType(415, "Unsupported type of body"),
    "payload_too_large": ProblemType(413, "The payload is too large"),
    "batch_too_large": ProblemType(413, "The batch is too large"),
    "foreign_host": ProblemType(421, "Not a name of this server"),
    "idempotency_conflict": ProblemType(422, "The Idempotency-Key was used for another message"),
    "bad_delay_file": ProblemType(422, "The file cannot be imported"),
    "upgrade_required": ProblemType(426, "Speaks frames, not HTTP"),
    "rate_limited": ProblemType(429, "Too many requests"),
    "head_too_large": ProblemType(431, "The head is too large"),
    "internal": ProblemType(500, "A fault in the server"),
    "unavailable": ProblemType(503, "Temporarily unavailable"),
    "stuck": ProblemType(503, "A shard is stuck"),
    "closing": ProblemType(503, "The server is about to stop"),
    "disk_full": ProblemType(503, "The disk is full"),
    "clock_out_of_bounds": ProblemType(503, "The server's clock is wrong"),
    "outcome_unknown": ProblemType(504, "Unknown whether it was done"),
}


def problem(code: str, detail: str, field: str | None = None, **extra: Any) -> dict[str, Any]:
    """The problem document of a code. `extra` are further members, such as `delivered_at`."""
    status, title = CODES[code]
    document: dict[str, Any] = {"type": TYPE + code, "title": title, "status": status, "detail": detail, "code": code}
    if field is not None:
        document["field"] = field
    return document | extra


def rejection(error: Rejected) -> dict[str, Any]:
    return problem(error.code, error.detail, error.field, **error.extra)


def problem_response(document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), document["status"], headers, MEDIA_TYPE)


def unavailable_response(error: Unavailable) -> Response:
    if isinstance(error, OutcomeUnknown):  # it may have been carried out, so clients must not simply retry
        return problem_response(problem(error.code, error.detail))
    return problem_response(problem(error.code, error.detail), {"Retry-After": str(error.retry_after_s)})


def malformed_answer(code: str, detail: str, request_id: bytes) -> tuple[int, bytes]:
    """Status, and the answer after its status line, for a malformed request, which no application ever sees."""
    document = problem(code, detail)
    body = orjson.dumps(document)
    head = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\nconnection: close\r\n\r\n"
    return document["status"], head % (MEDIA_TYPE.encode(), len(body), request_id) + body
