"""Lists imported files with their states, and submits new ones by path."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.model.timing import parse_instant
from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.imports import STATES
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import FormFields, given, instant_text, read_form
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import read_query

_LISTED: Final = 200
_NUMBERS: Final = {"size": "bytes", "rows": "messages"}
_FIELDS: Final = ("path", "link", "sha256", "window", *_NUMBERS)
_ABSENT: Final = dict.fromkeys(("reason", "path", "sha256", "window", "since", "rows", "size"))
"""Fields that the API may omit: all but the state, until the shard has answered."""
_DONE: Final = {
    "import": "The file is submitted. Its messages are scheduled once it is imported.",
    "duplicate": "A file with this content was submitted before: nothing was done.",
}


async def get_imports(service: Service, request: Request) -> Response:
    return await _list(service, request, read_query(request, ("state", "below")), {})


async def get_import(service: Service, request: Request) -> Response:
    done = _DONE.get(read_query(request, ("done",)).get("done", ""), "")
    one = await call_api(service, request, "GET", f"/v1/imports/{request.path_params['id']}")
    return render(request, "cluster/import.html", imports=[_ABSENT | one], one=one, done=done)


async def post_import(service: Service, request: Request) -> Response:
    form = await read_form(request)
    try:
        made = await call_api(service, request, "POST", "/v1/imports", body=_file(form))
    except Rejected as error:  # keep the typed values on the page
        typed = {name: form.text(name) for name in _FIELDS}
        return await _list(service, request, {}, typed, wrong=error.detail, field=error.field or "", status=400)
    done = "duplicate" if made["duplicate"] else "import"
    return redirect(request, f"imports/{quote(made['id'])}?done={done}")


async def _list(
    service: Service, request: Request, fields: dict[str, str], typed: dict[str, str], *, wrong: str = "",
    field: str = "", status: int = 200,
) -> Response:  # fmt: skip
    query = {**given(fields, "state", "below"), "limit": str(_LISTED)}
    listed = await call_api(service, request, "GET", "/v1/imports", query)
    return render(
        request, "cluster/imports.html", status, imports=[_ABSENT | one for one in listed["imports"]], states=STATES,
        fields={"state": "", "below": ""} | fields, count=listed["count"], typed=dict.fromkeys(_FIELDS, "") | typed,
        wrong=wrong, field=field, one=None,
    )  # fmt: skip


def _file(form: FormFields) -> dict[str, Any]:
    """The request to the API for the file in a form. Raises Rejected for an invalid number or time."""
    file: dict[str, Any] = {"path": form.get("path"), "link": bool(form.get("link"))}
    if sha256 := form.get("sha256"):
        file["sha256"] = sha256
    if window := form.get("window"):
        file["window"] = parse_instant(instant_text(window), "window", text=True)
    for name, unit in _NUMBERS.items():
        if text := form.get(name):
            if not (text.isascii() and text.isdecimal() and len(text) < 20):
                raise Rejected("bad_field", f"{name} is a whole number of {unit}", name)
            file[name] = int(text)
    return file
