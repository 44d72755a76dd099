"""The endpoints for administrators, which are part of the table of all endpoints (`proxy/table.py`)."""

from __future__ import annotations

from typing import Final

from duemq.cluster.admin.trail import MAX_ENTRIES
from duemq.model.callers.access import Scope
from duemq.proxy.api.admin import keys, schemas, trail
from duemq.proxy.api.admin.job_endpoints import JOB_ENDPOINTS
from duemq.proxy.api.endpoint import Endpoint, Parameter, ResponseSpec

_DOWN = ("unavailable", "disk_full")

ADMIN_ENDPOINTS: Final = (
    Endpoint(
        "GET", "/v1/keys", keys.list_keys, "List API keys", "keys",
        {200: ResponseSpec("All, oldest first, without their texts.", schemas.KeyList)}, ("unavailable",),
        scope=Scope.ADMIN,
    ),
    Endpoint(
        "POST", "/v1/keys", keys.post_key, "Make an API key", "keys",
        {201: ResponseSpec("It is in force here now, everywhere within a second. Its text is shown only this once.",
                     schemas.NewKey)},
        ("bad_json", "bad_field", "unknown_field", "both_times", "bad_time", "naive_time", "not_supported",
         "needs_admin", "unconfirmed", "payload_too_large", *_DOWN),
        (), schemas.KeyRequest,
        notes="Until a key exists, every caller has access, unless the settings require keys. The first key refuses "
        "all callers without one, and must be an admin's (`needs_admin`).",
        examples={"an admin's": {"name": "ops", "role": "admin"},
                  "a sender's": {"name": "shop", "scopes": ["send", "cancel"], "expires_after": "90d"}},
        scope=Scope.ADMIN,
    ),
    Endpoint(
        "DELETE", "/v1/keys/{id}", keys.delete_key, "Revoke an API key", "keys",
        {200: ResponseSpec("It is invalid here from now on, everywhere within a second. A repeat gets the same.",
                     schemas.Key)},
        ("unknown_key", "bad_field", "conflict", "not_supported", *_DOWN), scope=Scope.ADMIN,
    ),
    Endpoint(
        "POST", "/v1/keys/{id}:rotate", keys.rotate_key, "Give an API key a new text", "keys",
        {200: ResponseSpec("The new text is shown once; the old one is valid for the overlap.", schemas.NewKey)},
        ("unknown_key", "conflict", "bad_json", "bad_field", "unknown_field", "bad_time", "not_supported",
         "payload_too_large", *_DOWN),
        (), schemas.KeyRotation, examples={"at once": {"overlap": "0s"}}, scope=Scope.ADMIN,
    ),
    *JOB_ENDPOINTS,
    Endpoint(
        "GET", "/v1/trail", trail.get_trail, "List acts and denials, newest first", "service",
        {200: ResponseSpec("A page.", schemas.TrailPage)}, ("bad_query", "bad_cursor", "not_supported", *_DOWN),
        (
            Parameter(
                "limit", "How many.",
                {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": trail.DEFAULT_ENTRIES},
            ),
            Parameter("cursor", "From the previous page.", {"type": "string"}),
        ),
        scope=Scope.ADMIN,
    ),
)  # fmt: skip
