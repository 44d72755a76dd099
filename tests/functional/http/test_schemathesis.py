"""The server against its own OpenAPI document: generated requests, good and bad, find no undocumented answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from duemq.proxy.openapi import describe
from duemq.proxy.table import ENDPOINTS
from tests.functional.conftest import GUARD

pytestmark = pytest.mark.xdist_group("server")
# What is refused for its size or type gets a 413 or 415, which schemathesis does not count as a refusal by itself.
CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": [400, 404, 405, 409, 413, 415, 422]}}}
schema = schemathesis.openapi.from_dict(
    describe(ENDPOINTS), config=schemathesis.config.SchemathesisConfig.from_dict(CONFIG)
)
CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]
BATCHES = ("/v1/messages:batch", "/v1/messages:move")  # answer 200 with an error for each item that is refused
BATCH_CHECKS = [check for check in CHECKS if check is not openapi_checks.negative_data_rejection]


def test_the_served_document_is_the_one_under_test(guarded_server: str) -> None:
    assert httpx.get(f"{guarded_server}/openapi.json").json() == describe(ENDPOINTS)


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_requests_made_from_the_document(guarded_server: str, case: schemathesis.Case[Any]) -> None:
    """With access control: some of them make keys, and from the first one on nobody is served without."""
    checks = BATCH_CHECKS if case.operation.path in BATCHES else CHECKS
    case.call_and_validate(base_url=guarded_server, checks=checks, headers={"X-API-Key": GUARD}, timeout=300)
