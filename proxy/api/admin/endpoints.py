"""The endpoints of administrators: part of the one table (`proxy/table.py`)."""

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
        {201: ResponseSpec("It is in force here now, everywhere within a second. Its text is shown this once.",
                     schemas.NewKey)},
        ("bad_json", "bad_field", "unknown_field", "both_times", "bad_time", "naive_time", "not_supported",
         "needs_admin", "unconfirmed", "payload_too_large", *_DOWN),
        (), schemas.KeyRequest,
        notes="Until there is a key anybody may call, unless the settings ask for keys. Then the first key shuts out "
        "all callers without one, and has to be an admin's (`needs_admin`).",
        examples={"an admin's": {"name": "ops", "role": "admin"},
                  "a sender's": {"name": "shop", "scopes": ["send", "cancel"], "expires_after": "90d"}},
        scope=Scope.ADMIN,
    ),
    Endpoint(
        "DELETE", "/v1/keys/{id}", keys.delete_key, "Revoke an API key", "keys",
        {200: ResponseSpec("It opens nothing here from now on, nowhere within a second. A repeat gets the same.",
                     schemas.Key)},
        ("unknown_key", "bad_field", "conflict", "not_supported", *_DOWN), scope=Scope.ADMIN,
    ),
    Endpoint(
        "POST", "/v1/keys/{id}:rotate", keys.rotate_key, "Give an API key a new text", "keys",
        {200: ResponseSpec("The new text is shown this once; the old one is good for the overlap.", schemas.NewKey)},
        ("unknown_key", "conflict", "bad_json", "bad_field", "unknown_field", "bad_time", "not_supported",
         "payload_too_large", *_DOWN),
        (), schemas.KeyRotation, examples={"at once": {"overlap": "0s"}}, scope=Scope.ADMIN,
    ),
    *JOB_ENDPOINTS,
    Endpoint(
        "GET", "/v1/trail", trail.get_trail, "Who did or was denied what, newest first", "service",
        {200: ResponseSpec("A page.", schemas.TrailPage)}, ("bad_query", "bad_cursor", "not_supported", *_DOWN),
        (
            Parameter(
                "limit", "How many.",
                {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": trail.DEFAULT_ENTRIES},
            ),
            Parameter("cursor", "From the page before.", {"type": "string"}),
        ),
        scope=Scope.ADMIN,
    ),
)  # fmt: skip
