"""The endpoints of destinations: part of the one table (`proxy/table.py`)."""

from __future__ import annotations

from typing import Final

from duemq.model.callers.access import Scope
from duemq.proxy.api.endpoint import Endpoint, ResponseSpec
from duemq.proxy.destinations import handlers, shapes

_DOWN: Final = ("unavailable", "disk_full")
_TOLD: Final = ("unknown_destination", "conflict", "not_supported", *_DOWN)
_DECLARED: Final = ("bad_json", "bad_field", "unknown_field", "payload_too_large", "conflict", "not_supported", *_DOWN)
_STATE: Final = ResponseSpec("The destination as it is now.", shapes.DestinationState)
_NOTES: Final = """\
What is delivered into `topics` from now on, and into `destination.NAME`, is handed on by a relay. Credentials are given
apart and never shown; they are for the scheme, host and port of the URL. `replace` keeps them where none are given."""
_CHANGE_NOTES: Final = """\
A change of scheme, host or port needs the credentials again, or `{}` for none. Topics that are new begin at `start`."""

DESTINATION_ENDPOINTS: Final = (
    Endpoint(
        "GET", "/v1/destinations", handlers.list_destinations, "List destinations", "destinations",
        {200: ResponseSpec("All, by name, without their credentials.", shapes.DestinationList)},
        ("not_supported", "unavailable"), scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/destinations", handlers.post_destination, "Declare a destination", "destinations",
        {201: ResponseSpec("It is in force here now, everywhere within a second.", shapes.DestinationState,
                           {"Location": "Where to look."})},
        ("destination_exists", "too_many_destinations", *_DECLARED), (), shapes.DestinationRequest, notes=_NOTES,
        examples={
            "an endpoint of HTTP": {
                "name": "billing", "url": "https://billing.example.com/hooks", "topics": ["invoices"],
                "credentials": {"signing_secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}},
            "a broker, ten messages at a time": {
                "name": "warehouse", "url": "amqps://mq.example.com", "concurrency": 10,
                "credentials": {"username": "duemq", "password": "secret"}},
        },
        scope=Scope.ADMIN,
    ),
    Endpoint(
        "GET", "/v1/destinations/{name}", handlers.get_destination, "Look a destination up", "destinations",
        {200: _STATE}, ("unknown_destination", "not_supported", "unavailable"), scope=Scope.READ,
    ),
    Endpoint(
        "PATCH", "/v1/destinations/{name}", handlers.patch_destination, "Change a destination", "destinations",
        {200: _STATE}, ("unknown_destination", *_DECLARED), (), shapes.DestinationChange, notes=_CHANGE_NOTES,
        examples={"slower": {"rate": 50, "timeout": "30s"}}, scope=Scope.ADMIN,
    ),
    Endpoint(
        "DELETE", "/v1/destinations/{name}", handlers.delete_destination, "Remove a destination", "destinations",
        {204: ResponseSpec("It is removed with its credentials. What is in its topics stays there.")}, _TOLD,
        scope=Scope.ADMIN,
    ),
    Endpoint(
        "POST", "/v1/destinations/{name}:pause", handlers.pause_destination, "Hand on nothing until it is resumed",
        "destinations", {200: _STATE}, _TOLD, scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/destinations/{name}:resume", handlers.resume_destination,
        "Hand on again, also to one that is disabled", "destinations", {200: _STATE}, _TOLD, scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/destinations/{name}:test", handlers.test_destination, "Send a test message", "destinations",
        {200: ResponseSpec("What the other side says to it.", shapes.SystemReply)}, _TOLD,
        notes="It goes there at once, whether paused or not, with the header `x-duemq-test: 1`.", scope=Scope.OPERATE,
    ),
)  # fmt: skip
