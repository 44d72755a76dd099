"""Exceptions of the SDK: one class per rejection code of `docs/reference/api.md`, all under
`duemq.model.errors.DuemqError`.

* `RejectedError` and its subclasses: the server refuses; sending the same again changes nothing.
* `Unavailable`, `DiskFull`, `ClockOutOfBounds`, `RateLimited`: the server cannot accept it now; retry after
  `retry_after_s`.
* `Unreachable`: no answer; `outcome_unknown` says whether the request may have been executed.
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

    `status` is the HTTP status and `request_id` the server's id of the request. Both are None if the SDK itself refused
    before sending. In the items of a batch `request_id` is that of the whole batch.
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
    """An error in the message or the query; `field` names it."""


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
    """A time without a zone: it does not determine an instant."""


class NegativeDelay(BadWhen): ...


class DelayTooLong(BadWhen): ...


class PastDue(BadWhen): ...


class BadLevel(BadWhen): ...


class BadDelayFile(RejectedError):
    """A file that cannot be imported. If a row is wrong, `field` names its column and `row` its number, from 0."""

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
    """A destination of this name exists. Pass `replace=True` to replace it."""


class TooManyDestinations(RejectedError):
    """The limit of declared destinations is reached."""


class TooManyGroups(RejectedError):
    """The server has as many groups as it can."""


class TooManyLeases(RejectedError):
    """Workers hold as many messages of the group as it gives out: acknowledge some."""


class Conflict(RejectedError):
    """Another caller changed it at the same time: read it again."""


class ConsumerInUse(RejectedError):
    """Another process has committed as this consumer of the topic since this client did. Only one may at a time; to
    take over, call `committed_cursor` and continue from there."""


class TooManyConsumers(RejectedError):
    """The caller's limit of consumer names with stored cursors is reached: delete one that is not needed."""


class RedrivesExhausted(RejectedError):
    """The dead letter was redriven as often as the server's `topics.max_redrives` allows."""


class NeedsAdmin(RejectedError):
    """The first key of a server has to be an admin's, because it shuts out callers without a key."""


class Unconfirmed(RejectedError):
    """The key would shut out callers without a key: `extra["keyless_requests"]` is the number of their requests."""


class JobEnded(RejectedError):
    """The job has ended, and cannot be paused, resumed or cancelled."""


class TooManyJobs(RejectedError):
    """The limit of running and paused jobs is reached."""


class NoIds(RejectedError):
    """The file is not imported, or no longer kept because its messages are due."""


class NotIndexed(RejectedError):
    """Messages of this topic have no index (`index.topics` of the server)."""


class TooLate(RejectedError):
    """The message has already ended."""


class LeaseEnded(TooLate):
    """The message of this receipt may already be with another worker."""


class AlreadyDelivered(TooLate):
    """It was delivered at `delivered_at`, before the request took effect."""

    @property
    def delivered_at(self) -> datetime | None:
        return from_ms(self.extra.get("delivered_at_ms"))


class AlreadyCancelled(TooLate):
    """It was cancelled at `cancelled_at`, before the request took effect."""

    @property
    def cancelled_at(self) -> datetime | None:
        return from_ms(self.extra.get("cancelled_at_ms"))


class AlreadyDead(TooLate):
    """It went to the dead letters at `dead_at`, before the request took effect."""

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
    """This caller may not do that, or not now."""


class Unauthorised(NotAllowed): ...


class Forbidden(NotAllowed): ...


class ForeignOrigin(NotAllowed): ...


class ForeignHost(NotAllowed):
    """The server was addressed by a host name that is not its own."""


class NotSupported(NotAllowed):
    """This server cannot do that at all: a single node has no other node to hand over to."""


class Unavailable(errors.Unavailable):
    """503 or 429: the request is valid, but was not accepted; send it again after `retry_after_s` seconds."""

    status = 503

    def __init__(self, detail: str, retry_after_s: int = 1, *, request_id: str | None = None) -> None:
        super().__init__(detail, retry_after_s)
        self.field, self.request_id = None, request_id


class DiskFull(Unavailable):
    """503: the server's disk is full; messages accepted before are kept."""

    code = "disk_full"


class RateLimited(Unavailable):
    """429: the API key, or a gateway, allows no higher rate."""

    code = "rate_limited"
    status = 429


class ClockOutOfBounds(Unavailable):
    """503: the server's clock is wrong, so it refuses times relative to now; it accepts `deliver_at`."""

    code = "clock_out_of_bounds"


class Unreachable(errors.DuemqError):
    """The outcome was not reported: no answer came, or a gateway's 502 or 504, or the server's own `outcome_unknown`.

    With `outcome_unknown` the request was sent, so it may have been executed: look the message up, or send again under
    the same name or idempotency key.
    """

    def __init__(self, detail: str, *, outcome_unknown: bool) -> None:
        super().__init__(detail)
        self.detail, self.outcome_unknown = detail, outcome_unknown


class PendingError(errors.DuemqError):
    """The request is durable but its answer was not known in time. Repeating a cancel gives the answer."""

    def __init__(self, detail: str, message_id: str) -> None:
        super().__init__(detail)
        self.detail, self.message_id = detail, message_id


class UnexpectedAnswer(errors.DuemqError):
    """Not an answer of the duemq API (another server, a gateway's error page), or a fault in the server (HTTP 500).

    The request may or may not have been executed.
    """


class BatchInterrupted(errors.DuemqError):
    """A batch of several requests failed after some were answered; `__cause__` says why.

    `results` has the answers for the first `len(results)` drafts, in order. If the cause is an `Unreachable` with
    `outcome_unknown`, or an `UnexpectedAnswer`, the outcome of the next request's drafts (up to 10,000) is unknown;
    send them again if each has a name or an idempotency key. All others were not accepted.
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
    """The exception for a problem document. A code that this version does not know becomes a plain `RejectedError`, or
    `Unavailable` if its status is 503."""
    code, detail = str(problem["code"]), str(problem.get("detail") or problem.get("title") or problem["code"])
    if code == OUTCOME_UNKNOWN:
        return Unreachable(detail, outcome_unknown=True)
    if code in UNAVAILABLE_BY_CODE or (problem.get("status") == 503 and code not in BY_CODE):
        return UNAVAILABLE_BY_CODE.get(code, Unavailable)(detail, retry_after_s, request_id=request_id)
    extra = {name: value for name, value in problem.items() if name not in _OWN_MEMBERS}
    rejected = BY_CODE.get(code, RejectedError)
    return rejected(code, detail, problem.get("field"), status=problem.get("status"), request_id=request_id, **extra)
