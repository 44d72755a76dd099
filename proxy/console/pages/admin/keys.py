"""Lists, creates, rotates and revokes API keys. A key's text is shown only once, to its creator."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.proxy.access import UNCHANGED
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import FormFields, instant_text, read_form
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import read_query

_FIELDS: Final = ("name", "role", "topics", "rate", "expires_at", "expires_after")
_DONE: Final = {"revoke": "The key is revoked: it opens nothing any more."}


async def get_keys(service: Service, request: Request) -> Response:
    done = _DONE.get(read_query(request, ("done",)).get("done", ""), "")
    closes = service.access.keys is not None and service.access.keys.would_close
    fields = dict.fromkeys(_FIELDS, "") | ({"role": "admin"} if closes else {})
    return await _list(service, request, fields, done=done)


async def post_key(service: Service, request: Request) -> Response:
    form = await read_form(request)
    fields = {name: form.text(name) for name in _FIELDS}
    try:
        body = _key(form) | {"confirm": bool(form.get("sure"))}
        made = await call_api(service, request, "POST", "/v1/keys", body=body)
    except Rejected as error:
        if error.code == "unconfirmed":
            request.scope[UNCHANGED] = True
            return render(request, "admin/first_key.html", fields=fields, detail=error.detail)
        return await _list(service, request, fields, wrong=error.detail, field=error.field or "", status=400)
    return render(request, "admin/key.html", key=made, title="A new key", question="")


async def post_rotate(service: Service, request: Request) -> Response:
    form = await read_form(request)
    id_: str = request.path_params["id"]
    if not form.get("sure"):
        return await _ask(service, request, id_, "rotate")
    body = {"overlap": form.get("overlap")} if form.get("overlap") else {}
    made = await call_api(service, request, "POST", f"/v1/keys/{id_}:rotate", body=body)
    return render(request, "admin/key.html", key=made, title="The new text of a key", question="")


async def post_revoke(service: Service, request: Request) -> Response:
    id_: str = request.path_params["id"]
    if not (await read_form(request)).get("sure"):
        return await _ask(service, request, id_, "revoke")
    await call_api(service, request, "DELETE", f"/v1/keys/{id_}")
    return redirect(request, "keys?done=revoke")


async def _ask(service: Service, request: Request, id_: str, question: str) -> Response:
    request.scope[UNCHANGED] = True
    listed = await call_api(service, request, "GET", "/v1/keys")
    key = next((key for key in listed["keys"] if key["id"] == id_), None)
    if key is None:
        raise Rejected("unknown_key", "There is no such key.", "id")
    return render(request, "admin/key.html", key=key, title="", question=question)


async def _list(
    service: Service, request: Request, fields: dict[str, str], *, done: str = "", wrong: str = "", field: str = "",
    status: int = 200,
) -> Response:  # fmt: skip
    listed = await call_api(service, request, "GET", "/v1/keys")
    keys = sorted(listed["keys"], key=lambda key: (key["state"] != "active", key["created_at"]))
    return render(
        request, "admin/keys.html", status, keys=keys, fields=fields, done=done, wrong=wrong, field=field,
        keeps=service.access.keys is not None,
    )  # fmt: skip


def _key(form: FormFields) -> dict[str, Any]:
    """The request to the API for the key in a form. Raises Rejected `bad_field` if the rate is not a number."""
    key: dict[str, Any] = {"name": form.get("name")}
    if (role := form.get("role")) in ("viewer", "operator", "admin"):
        key["role"] = role
    else:
        key["scopes"] = ["send", "cancel"] if role == "sender" else []
    if topics := form.get("topics").replace(",", " ").split():
        key["topics"] = topics
    if rate := form.get("rate"):
        if not rate.isdecimal() or len(rate) > len("1000000"):
            raise Rejected("bad_field", "rate is a whole number of messages/s", "rate")
        key["rate"] = int(rate)
    for name, value in (
        ("expires_at", instant_text(form.get("expires_at"))),
        ("expires_after", form.get("expires_after")),
    ):
        if value:
            key[name] = value
    return key
