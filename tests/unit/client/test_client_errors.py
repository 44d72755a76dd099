"""Every rejection code has its class, and problems keep what they say."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from duemq.client.http import errors
from duemq.client.http.exchange import error_of
from duemq.model.errors import DuemqError, Rejected
from duemq.web.problem import CODES as SERVER_CODES

CODES = set(
    """missing_topic bad_field bad_query bad_cursor bad_topic both_times bad_time naive_time negative_delay
    delay_too_long past_due bad_level both_payloads bad_base64 needs_key unknown_field bad_header bad_json
    unknown_message unknown_topic already_delivered already_cancelled already_dead name_conflict name_taken
    payload_too_large batch_too_large idempotency_conflict unauthorised forbidden
    unknown_node not_supported unknown_import bad_delay_file no_ids unexpected_body unsupported_media_type
    malformed_request head_too_large foreign_origin foreign_host unknown_key conflict not_indexed
    needs_admin unconfirmed
    unknown_job job_ended too_many_jobs redrives_exhausted already_purged unknown_destination
    destination_exists too_many_destinations consumer_in_use
    too_many_consumers unknown_group too_many_groups too_many_leases lease_ended""".split()
)
NOT_OF_A_CALLER = {"internal", "not_found", "method_not_allowed", "upgrade_required"}
"""Codes that tell of a fault, of the server's or of the SDK's own."""


def test_each_code_has_a_class_of_its_own_under_one_root() -> None:
    assert set(errors.BY_CODE) == CODES
    assert len(set(errors.BY_CODE.values())) == len(CODES)
    for code in CODES:
        error = errors.from_problem({"code": code, "detail": "d", "field": "f", "status": 400, "title": "t"}, "r1")
        assert type(error) is errors.BY_CODE[code]
        assert isinstance(error, Rejected) and isinstance(error, DuemqError)
        assert (error.code, error.field, error.detail, error.status, error.request_id) == (code, "f", "d", 400, "r1")


def test_no_code_of_the_server_is_without_a_meaning() -> None:
    known = errors.BY_CODE.keys() | errors.UNAVAILABLE_BY_CODE.keys() | {errors.OUTCOME_UNKNOWN} | NOT_OF_A_CALLER
    assert known >= SERVER_CODES.keys()


def test_already_delivered_says_when() -> None:
    problem = {"code": "already_delivered", "status": 409, "delivered_at": "…", "delivered_at_ms": 1001}
    error = errors.from_problem(problem, None)
    assert isinstance(error, errors.AlreadyDelivered)
    assert error.delivered_at == datetime(1970, 1, 1, 0, 0, 1, 1000, UTC)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unavailable", errors.Unavailable),
        ("disk_full", errors.DiskFull),
        ("clock_out_of_bounds", errors.ClockOutOfBounds),
        ("rate_limited", errors.RateLimited),
    ],
)
def test_unavailable_says_when_to_try_again(code: str, kind: type[errors.Unavailable]) -> None:
    response = httpx.Response(503, json={"code": code, "detail": "d"}, headers={"Retry-After": "7"})
    error = error_of(response)
    assert type(error) is kind
    assert error.retry_after_s == 7


def test_a_newer_code_is_still_a_rejection() -> None:
    error = error_of(httpx.Response(400, json={"code": "brand_new", "detail": "d", "status": 400}))
    assert type(error) is errors.RejectedError and error.code == "brand_new"
    later = error_of(httpx.Response(503, json={"code": "brand_new", "status": 503}, headers={"Retry-After": "9"}))
    assert type(later) is errors.Unavailable and later.retry_after_s == 9


def test_answers_of_other_servers_are_told_apart() -> None:
    assert type(error_of(httpx.Response(503, text="no server"))) is errors.Unavailable
    limited = error_of(httpx.Response(429, text="slow down", headers={"Retry-After": "3"}))
    assert isinstance(limited, errors.RateLimited) and (limited.status, limited.retry_after_s) == (429, 3)
    fault = httpx.Response(500, json={"code": "internal", "detail": "look for r1 in the log", "status": 500})
    for strange in (httpx.Response(404, text="<html>"), httpx.Response(500, json=["no", "problem"]), fault):
        assert type(error_of(strange)) is errors.UnexpectedAnswer
