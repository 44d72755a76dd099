"""Exceptions of the SDK: one class per rejection code in `docs/reference/api.md`, all subclasses of
`duemq.model.errors.DuemqError`.

* `RejectedError` and its subclasses: the server refuses the request; sending the same request again does not help.
* `Unavailable`, `DiskFull`, `ClockOutOfBounds`, `RateLimited`: the server cannot accept the request now; retry after
  `retry_after_s`.
* `Unreachable`: no answer came; `outcome_unknown` says whether the request may have been executed.
* `PendingError`: the answer to a cancel, move or deliver-now was not known in time; ask again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from duemq.client.http.times import from_ms
from duemq.model import errors


class RejectedError(errors.Rejected):
    """A refused request.

    `status` is the HTTP status, and `request_id` the server's id for the request. Both are None if the SDK refused the
    request before sending it. In the items of a batch, `request_id` is the id of the whole batch.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        field: str | None = None,
        *,
        status: int | None = None,
        request_id: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(code, detail, field, **extra)
        self.status, self.request_id = status, request_id


class BadRequest(RejectedError):
    """An error in the message or the query. `field` is the name of the invalid field."""


class MissingTopic(BadRequest): ...


class BadField(BadRequest): ...


class BadPayload(BadField, TypeError):
    """A payload that JSON cannot represent."""


class UnknownField(BadRequest): ...


class BadTopic(BadRequest): ...


class BadHeader(BadRequest): ...


class BadJson(BadRequest): ...


class BadQuery(BadRequest): ...


class BadCursor(BadRequest): ...


class BothPayloads(BadRequest): ...


class UnexpectedBody(BadRequest): ...


class UnsupportedMediaType(BadRequest): ...


class MalformedRequest(BadRequest): ...


class HeadTooLarge(BadRequest): ...


class BadBase64(BadRequest): ...


class NeedsKey(BadRequest): ...


class PayloadTooLarge(BadRequest): ...


class BatchTooLarge(BadRequest): ...


class BadWhen(BadRequest):
    """The requested time is invalid."""


class BothTimes(BadWhen): ...


class BadTime(BadWhen): ...


class NaiveTimeError(BadWhen, ValueError):
    """A time without a zone, which does not determine an instant."""


class NegativeDelay(BadWhen): ...


class DelayTooLong(BadWhen): ...


class PastDue(BadWhen): ...


class BadLevel(BadWhen): ...


class BadDelayFile(RejectedError):
    """A file that cannot be imported. If a row is invalid, `field` is the column, and `row` the row's number, from
    0."""

    @property
    def row(self) -> int | None:
        return self.extra.get("row")


class NotFound(RejectedError):
    """The id or name is unknown."""


class UnknownMessage(NotFound): ...


class UnknownTopic(NotFound): ...


class UnknownNode(NotFound): ...


class UnknownKey(NotFound): ...


class UnknownJob(NotFound): ...


class UnknownImport(NotFound): ...


class UnknownDestination(NotFound): ...


class UnknownGroup(NotFound): ...


class DestinationExists(RejectedError):
    """A destination with this name exists. Pass `replace=True` to replace it."""


class TooManyDestinations(RejectedError):
    """The limit on the number of destinations is reached."""


class TooManyGroups(RejectedError):
    """The limit on the number of groups is reached."""


class TooManyLeases(RejectedError):
    """The limit on leased messages in the group is reached: acknowledge some."""


class Conflict(RejectedError):
    """Another caller changed the object at the same time: read it again."""


class ConsumerInUse(RejectedError):
    """Since this client's last commit for the consumer and topic, another process has committed under the same consumer
    name. Only one process may use the name at a time. To take over, call `committed_cursor` and continue from the
    cursor that it returns."""


class TooManyConsumers(RejectedError):
    """The caller's limit on consumer names with stored cursors is reached: delete a name that is not needed."""


class RedrivesExhausted(RejectedError):
    """The dead letter has been redriven as often as the server's setting `topics.max_redrives` allows."""


class NeedsAdmin(RejectedError):
    """The first key of a server must be an admin's, because it shuts out callers without a key."""


class Unconfirmed(RejectedError):
    """The key would shut out callers without a key: `extra["keyless_requests"]` is the number of their requests."""


class JobEnded(RejectedError):
    """The job has ended, and cannot be paused, resumed or cancelled."""


class TooManyJobs(RejectedError):
    """The limit on the number of running and paused jobs is reached."""


class NoIds(RejectedError):
    """The file has not been imported, or was removed because its messages are due."""


class NotIndexed(RejectedError):
    """Messages for this topic are not in the index (the server's setting `index.topics`)."""


class TooLate(RejectedError):
    """The message has already ended."""


class LeaseEnded(TooLate):
    """The lease with this receipt has ended: another worker may already have the message."""


class AlreadyDelivered(TooLate):
    """The message was delivered at `delivered_at`, before the request took effect."""

    @property
    def delivered_at(self) -> datetime | None:
        return from_ms(self.extra.get("delivered_at_ms"))


class AlreadyCancelled(TooLate):
    """The message was cancelled at `cancelled_at`, before the request took effect."""

    @property
    def cancelled_at(self) -> datetime | None:
        return from_ms(self.extra.get("cancelled_at_ms"))


class AlreadyDead(TooLate):
    """The message was dead-lettered at `dead_at`, before the request took effect."""

    @property
    def dead_at(self) -> datetime | None:
        return from_ms(self.extra.get("dead_at_ms"))


class AlreadyPurged(TooLate):
    """The dead letter was purged for good."""


class NameInUse(RejectedError):
    """The chosen name or idempotency key belongs to another message."""


class NameTaken(NameInUse): ...


class NameConflict(NameInUse): ...


class IdempotencyConflict(NameInUse): ...


class NotAllowed(RejectedError):
    """This caller may not make the request, or not at present."""


class Unauthorised(NotAllowed): ...


class Forbidden(NotAllowed): ...


class ForeignOrigin(NotAllowed): ...


class ForeignHost(NotAllowed):
    """The server was addressed by a host name that is not among its own names."""


class NotSupported(NotAllowed):
    """This server can never fulfil the request. For example, a single node has no other node to release its shards
    to."""


class Unavailable(errors.Unavailable):
    """HTTP 503 or 429: the request is valid, but was not accepted; send it again after `retry_after_s` seconds."""

    status = 503

    def __init__(self, detail: str, retry_after_s: int = 1, *, request_id: str | None = None) -> None:
        super().__init__(detail, retry_after_s)
        self.field, self.request_id = None, request_id


class DiskFull(Unavailable):
    """HTTP 503: the server's disk is full. Messages that were accepted before are safe."""

    code = "disk_full"


class RateLimited(Unavailable):
    """HTTP 429: the rate exceeds the limit of the API key or of a gateway."""

    code = "rate_limited"
    status = 429


class ClockOutOfBounds(Unavailable):
    """HTTP 503: the server's clock is wrong, so it refuses times relative to now. It still accepts `deliver_at`."""

    code = "clock_out_of_bounds"


class Unreachable(errors.DuemqError):
    """The outcome was not reported: no answer came, or a gateway answered 502 or 504, or the server answered
    `outcome_unknown`.

    If `outcome_unknown` is true, the request may have been executed: look the message up, or send it again with the
    same name or idempotency key.
    """

    def __init__(self, detail: str, *, outcome_unknown: bool) -> None:
        super().__init__(detail)
        self.detail, self.outcome_unknown = detail, outcome_unknown


class PendingError(errors.DuemqError):
    """The request is durable, but its answer was not known in time. Repeat a cancel to get the answer."""

    def __init__(self, detail: str, message_id: str) -> None:
        super().__init__(detail)
        self.detail, self.message_id = detail, message_id


class UnexpectedAnswer(errors.DuemqError):
    """The answer did not come from the duemq API (but from another server, or it is a gateway's error page), or it
    reports a fault in the server (HTTP 500).

    The request may or may not have been executed.
    """


class BatchInterrupted(errors.DuemqError):
    """A batch that needs several requests failed after some of them were answered. `__cause__` is the reason.

    `results` contains the results of the first `len(results)` drafts, in order. If the cause is an `Unreachable` with
    `outcome_unknown`, or an `UnexpectedAnswer`, the outcome is unknown for the drafts in the next request (up to
    10,000): send them again if each has a name or an idempotency key. All further drafts were not accepted.
    """

    def __init__(self, detail: str, results: Sequence[Any]) -> None:
        super().__init__(detail)
        self.detail, self.results = detail, results


BY_CODE: dict[str, type[RejectedError]] = {
    "missing_topic": MissingTopic,
    "bad_field": BadField,
    "unknown_field": UnknownField,
    "bad_topic": BadTopic,
    "bad_header": BadHeader,
    "bad_json": BadJson,
    "bad_query": BadQuery,
    "bad_cursor": BadCursor,
    "both_payloads": BothPayloads,
    "unexpected_body": UnexpectedBody,
    "unsupported_media_type": UnsupportedMediaType,
    "malformed_request": MalformedRequest,
    "head_too_large": HeadTooLarge,
    "bad_base64": BadBase64,
    "needs_key": NeedsKey,
    "payload_too_large": PayloadTooLarge,
    "batch_too_large": BatchTooLarge,
    "both_times": BothTimes,
    "bad_time": BadTime,
    "naive_time": NaiveTimeError,
    "negative_delay": NegativeDelay,
    "delay_too_long": DelayTooLong,
    "past_due": PastDue,
    "bad_level": BadLevel,
    "unknown_message": UnknownMessage,
    "unknown_topic": UnknownTopic,
    "unknown_node": UnknownNode,
    "unknown_key": UnknownKey,
    "conflict": Conflict,
    "consumer_in_use": ConsumerInUse,
    "too_many_consumers": TooManyConsumers,
    "unknown_job": UnknownJob,
    "needs_admin": NeedsAdmin,
    "unconfirmed": Unconfirmed,
    "job_ended": JobEnded,
    "too_many_jobs": TooManyJobs,
    "redrives_exhausted": RedrivesExhausted,
    "already_purged": AlreadyPurged,
    "unknown_import": UnknownImport,
    "unknown_destination": UnknownDestination,
    "destination_exists": DestinationExists,
    "too_many_destinations": TooManyDestinations,
    "unknown_group": UnknownGroup,
    "too_many_groups": TooManyGroups,
    "too_many_leases": TooManyLeases,
    "lease_ended": LeaseEnded,
    "bad_delay_file": BadDelayFile,
    "no_ids": NoIds,
    "not_indexed": NotIndexed,
    "already_delivered": AlreadyDelivered,
    "already_cancelled": AlreadyCancelled,
    "already_dead": AlreadyDead,
    "name_taken": NameTaken,
    "name_conflict": NameConflict,
    "idempotency_conflict": IdempotencyConflict,
    "unauthorised": Unauthorised,
    "forbidden": Forbidden,
    "foreign_origin": ForeignOrigin,
    "foreign_host": ForeignHost,
    "not_supported": NotSupported,
}
UNAVAILABLE_BY_CODE: dict[str, type[Unavailable]] = {
    "unavailable": Unavailable,
    "closing": Unavailable,
    "stuck": Unavailable,
    "disk_full": DiskFull,
    "rate_limited": RateLimited,
    "clock_out_of_bounds": ClockOutOfBounds,
}
OUTCOME_UNKNOWN = "outcome_unknown"
_OWN_MEMBERS = {"type", "title", "status", "detail", "code", "field", "request_id"}


def from_problem(
    problem: Mapping[str, Any], request_id: str | None, retry_after_s: int = 1
) -> RejectedError | Unavailable | Unreachable:
    """The exception for a problem document. An unknown code becomes a plain `RejectedError`, or `Unavailable` if the
    status is 503."""
    code, detail = str(problem["code"]), str(problem.get("detail") or problem.get("title") or problem["code"])
    if code == OUTCOME_UNKNOWN:
        return Unreachable(detail, outcome_unknown=True)
    if code in UNAVAILABLE_BY_CODE or (problem.get("status") == 503 and code not in BY_CODE):
        return UNAVAILABLE_BY_CODE.get(code, Unavailable)(detail, retry_after_s, request_id=request_id)
    extra = {name: value for name, value in problem.items() if name not in _OWN_MEMBERS}
    rejected = BY_CODE.get(code, RejectedError)
    return rejected(code, detail, problem.get("field"), status=problem.get("status"), request_id=request_id, **extra)
