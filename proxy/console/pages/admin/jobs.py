"""Bulk jobs: creates a job for all messages that match a filter; shows, pauses, resumes and cancels jobs."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.proxy.access import UNCHANGED
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import FormFields, instant_text, read_form
from duemq.proxy.console.pages.changes import TYPED, question
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import PREFIXES

_TIMES: Final = ("due_from", "due_to", "dead_from", "dead_to")
_FILTERS: Final = ("topic", "key", "label", "reason", *_TIMES, *PREFIXES)
_A_RATE: Final = "The rate is a number of messages/s."
_STEPS: Final = ("pause", "resume", "cancel")
_ABSENT: Final = dict.fromkeys(("ended_at", "deliver_at", "shift_ms"))  # fields that the API may omit


async def get_jobs(service: Service, request: Request) -> Response:
    listed = await call_api(service, request, "GET", "/v1/jobs")
    jobs = [_shown(service, job) for job in listed["jobs"]]
    return render(request, "admin/jobs.html", jobs=jobs, one=None, active=any(job["active"] for job in jobs))


async def get_job(service: Service, request: Request) -> Response:
    job = _shown(service, await call_api(service, request, "GET", f"/v1/jobs/{request.path_params['id']}"))
    return render(request, "admin/jobs.html", jobs=[job], one=job, active=job["active"])


async def post_job(service: Service, request: Request) -> Response:
    """Create a job, or count the messages to change and ask for confirmation."""
    form = await read_form(request)
    order = _order(form)
    if not form.get("dry_run"):
        job = await call_api(service, request, "POST", "/v1/jobs", body=order)
        return redirect(request, f"jobs/{quote(job['id'])}")
    request.scope[UNCHANGED] = True
    counted = await call_api(service, request, "POST", "/v1/jobs", body=order | {"dry_run": True})
    return await question(
        service, request, order["kind"], counted["total"], ids=order.get("ids", ()), fields=order.get("filter"),
        source=form.get("source"), by_job=True, typed={name: form.get(name) for name in TYPED}, is_dry_run=True,
    )  # fmt: skip


async def post_step(service: Service, request: Request) -> Response:
    """Pause, resume or cancel, depending on the form."""
    form, id_ = await read_form(request), request.path_params["id"]
    if (step := form.get("step")) not in _STEPS:
        raise Rejected("bad_field", f"The form does not say which step: {', '.join(_STEPS)}.", "step")
    await call_api(service, request, "POST", f"/v1/jobs/{id_}:{step}")
    return redirect(request, f"jobs/{quote(id_)}")


def _order(form: FormFields) -> dict[str, Any]:
    """The request to the API for the job in a form. Raises Rejected `bad_field` if the rate is not a number."""
    order: dict[str, Any] = {"kind": form.get("kind")}
    if ids := form.all("id"):
        order["ids"] = ids
    else:
        order["filter"] = {name: _value(name, form.get(name)) for name in _FILTERS if form.get(name)}
    for name, value in (
        ("source", form.get("source")),
        ("topic", form.get("to")), ("deliver_at", instant_text(form.get("at"))), ("deliver_after", form.get("after")),
        ("shift", form.get("shift")),
    ):  # fmt: skip
        if value:
            order[name] = value
    if rate := form.get("rate"):
        order["rate"] = _rate(rate)
    return order


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError as error:
        raise Rejected("bad_field", _A_RATE, "rate") from error
    if not isfinite(rate):  # JSON has no such values: the API would read null
        raise Rejected("bad_field", _A_RATE, "rate")
    return rate


def _value(name: str, text: str) -> str:
    return instant_text(text) if name in _TIMES else text


def _shown(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    """A job with the name of its creator, and its progress in percent; None while its total is unknown."""
    key = None if service.access.keys is None else service.access.keys.by_id.get(job["by"])
    handled = job["done"] + job["skipped"] + job["failed"]
    percent = None if job["total"] is None else 100 * handled / job["total"] if job["total"] else 100.0
    return _ABSENT | job | {"handled": handled, "percent": percent, "by": key.name if key else job["by"]}
