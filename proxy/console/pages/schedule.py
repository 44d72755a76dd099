"""The form that schedules one message."""

from __future__ import annotations

import secrets
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import FormFields, instant_text, read_form
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import read_query

_FIELDS: Final = ("topic", "at", "after", "key", "name", "labels", "headers", "expires", "payload", "base64", "once")
_FORM_BYTES: Final = 16 << 20


async def get_schedule(service: Service, request: Request) -> Response:
    query = read_query(request, ("topic",))
    # With this idempotency key the form takes effect only once, even if the browser sends it again.
    fields = dict.fromkeys(_FIELDS, "") | {"topic": query.get("topic", ""), "once": secrets.token_hex(16)}
    return render(request, "schedule.html", fields=fields, wrong="", field="")


async def post_schedule(service: Service, request: Request) -> Response:
    form = await read_form(request, _FORM_BYTES)
    try:
        body, name = _message(form), form.get("name")
        if name:
            receipt = await call_api(service, request, "PUT", f"/v1/messages/{quote(name, safe='')}", body=body)
        else:
            once = {"Idempotency-Key": form.get("once") or secrets.token_hex(16)}
            receipt = await call_api(service, request, "POST", "/v1/messages", body=body, headers=once)
    except Rejected as error:
        fields = {name: form.text(name) for name in _FIELDS}
        field = "headers" if error.field == "header_list" else error.field or ""
        return render(request, "schedule.html", 400, fields=fields, wrong=error.detail, field=field)
    done = "duplicate" if receipt.get("duplicate") else "schedule"
    return redirect(request, f"messages/{quote(receipt['id'])}?done={done}")


def _message(form: FormFields) -> dict[str, Any]:
    """The request to the API for the message in a form. Raises Rejected `bad_field` for malformed headers."""
    payload = form.text("payload").replace("\r\n", "\n")  # browsers send CRLF
    message: dict[str, Any] = {"topic": form.get("topic")}
    message["payload_base64" if form.get("base64") else "payload"] = payload
    for name, value in (
        ("deliver_at", instant_text(form.get("at"))),
        ("deliver_after", form.get("after")),
        ("key", form.get("key")),
        ("expires_at", instant_text(form.get("expires"))),
        ("labels", [label.strip() for label in form.get("labels").split(",") if label.strip()]),
        ("header_list", _headers(form.text("headers"))),
    ):
        if value:
            message[name] = value
    return message


def _headers(text: str) -> list[tuple[str, str]]:
    headers = []
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon:
                raise Rejected("bad_field", f"A header is NAME: VALUE, one per line, not {line[:40]}", "headers")
            headers.append((name.strip(), value.strip()))
    return headers
