"""Shows destinations with their declarations and figures; pauses, resumes and tests them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.model.timing import format_duration, format_ms
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import sees_payloads
from duemq.proxy.console.forms import read_form
from duemq.proxy.console.views import redirect, render

_STEPS: Final = ("pause", "resume", "test")
_COUNTS: Final = ("lag", "in_flight", "in_hand")
_RESULTS: Final = ("accepted", "failed", "rejected", "away", "gone")


async def get_destinations(service: Service, request: Request) -> Response:
    listed = await call_api(service, request, "GET", "/v1/destinations")
    destinations = [_shown(destination) for destination in listed["destinations"]]
    return render(request, "destinations/destinations.html", destinations=destinations)


async def get_destination(service: Service, request: Request) -> Response:
    return await _page(service, request)


async def post_step(service: Service, request: Request) -> Response:
    """Pause, resume or test, depending on the form."""
    form, name = await read_form(request), request.path_params["name"]
    if (step := form.get("step")) not in _STEPS:
        raise Rejected("bad_field", f"The form does not say which step: {', '.join(_STEPS)}.", "step")
    answer = await call_api(service, request, "POST", f"/v1/destinations/{name}:{step}")
    if step == "test":
        return await _page(service, request, answer)
    return redirect(request, f"destinations/{quote(name)}")


async def _page(service: Service, request: Request, reply: Any = None) -> Response:
    """The page of a destination. `reply`: the answer to a test message."""
    destination = await call_api(service, request, "GET", f"/v1/destinations/{request.path_params['name']}")
    return render(
        request, "destinations/destination.html", one=_shown(destination), reply=reply,
        visible=sees_payloads(service, request),
    )  # fmt: skip


def _shown(destination: dict[str, Any]) -> dict[str, Any]:
    """A destination with all figures that pages show, each None if unknown, and its durations as text."""
    figures = destination["figures"] or {}
    retry = destination["retry"]
    results, last_at = figures.get("results") or {}, figures.get("last_accepted_at")
    return destination | {
        "known": destination["figures"] is not None,
        "counts": {name: figures.get(name) for name in _COUNTS},
        "results": {name: results.get(name) for name in _RESULTS},
        "times": {name: figures.get(f"{name}_ms") or {} for name in ("lateness", "took")},
        "last_at": None if last_at is None else format_ms(last_at),
        "failures": [each | {"at": format_ms(each["at"])} for each in figures.get("last_failures") or ()],
        "trouble": figures.get("trouble") or "",
        "timeout_text": format_duration(destination["timeout"]),
        "retry_text": _retry_text(retry),
    }


def _retry_text(retry: dict[str, Any]) -> str:
    match retry["kind"]:
        case "levels":
            way = f"by delay levels from {retry['first_level']} on"
        case "delays":
            return f"{len(retry['delays'])} times, after {', '.join(map(format_duration, retry['delays']))}"
        case _:
            first, most = format_duration(retry["first"]), format_duration(retry["most"])
            way = f"after {first}, then {retry['factor']:g} times as long each time, at most {most}"
    return f"{retry['retries']} times, {way}"
