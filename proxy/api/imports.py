"""Imports of files with messages. A file is submitted by its path, and each replica reads it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.import_command import MAX_FILES, MAX_ROWS, ImportCommand
from duemq.model.timing import parse_instant, shown
from duemq.proxy.api.endpoint import Service
from duemq.proxy.gateway.base import ImportStatus
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.proxy.request.query import read_number, read_query
from duemq.proxy.response.render import times
from duemq.storage.object_store import is_object, wrong_uri
from duemq.storage.shard.records import IMPORTED, PENDING, REJECTED
from duemq.web.body import SMALL_BODY_BYTES
from duemq.web.json_response import JsonResponse, in_slices

STATES: Final = (PENDING, IMPORTED, REJECTED)
_FIELDS: Final = ("path", "link", "sha256", "size", "window", "rows")
_OF_FILE: Final = frozenset(("sha256", "size", "window", "rows"))


_BATCH_BYTES: Final = 64 << 20
_BATCH_VALUES: Final = 10 * MAX_FILES
MAX_IDS: Final = 10_000
MAX_LISTED: Final = 1_000_000
PAGE: Final = 1_000
_A_PATH: Final = "path must be the absolute path of a file, as the nodes see it, or s3://BUCKET/KEY"


async def post_import(service: Service, request: Request) -> Response:
    import_command = await _import_file(service, request, await read_json(request, SMALL_BODY_BYTES))
    _check_window(service, import_command)
    status = await service.gateway.import_file(import_command)
    return JsonResponse(_shown(status), 200 if status.known else 202, {"Location": f"imports/{status.id}"})


async def post_imports(service: Service, request: Request) -> Response:
    body = await read_json(request, _BATCH_BYTES, _BATCH_VALUES, "batch_too_large")
    import_commands = await asyncio.to_thread(_imports, service, body)
    statuses = await service.gateway.import_files(import_commands)
    imports = await in_slices(statuses, _shown)
    return JsonResponse({"imports": imports}, 202 if not all(one.known for one in statuses) else 200)


def _imports(service: Service, body: dict[str, Any]) -> list[ImportCommand]:
    """The import commands for a batch of files. Each file has the fields of a single submission. Blocks."""
    check_fields(body, ("files",))
    files = body.get("files")
    if type(files) is not list or not files:
        raise Rejected("bad_field", "files must be a list of files", "files")
    if len(files) > MAX_FILES:
        raise Rejected("batch_too_large", f"a batch holds at most {MAX_FILES} files, not {len(files)}", "files")
    import_commands = []
    for number, file in enumerate(files):
        try:
            import_commands.append(_import_of_batch(service, file))
        except Rejected as error:
            raise Rejected(error.code, f"file {number}: {error.detail}", error.field, file=number) from error
    return import_commands


def _import_of_batch(service: Service, file: Any) -> ImportCommand:
    if type(file) is not dict:
        raise Rejected("bad_field", f"a file is a JSON object, not {shown(file)}", "files")
    import_command = ImportCommand.of(file)
    _check_path(import_command.path)
    if (reason := service.importing.refuse_folder(import_command.path)) is not None:
        raise Rejected("forbidden", reason, "path")
    _check_window(service, import_command)
    return import_command


def _check_path(path: str) -> None:
    if is_object(path) and path.isprintable():
        if (wrong := wrong_uri(path)) is not None:
            raise Rejected("bad_field", f"path: {wrong}", "path")
    elif not path.startswith("/") or "\x00" in path:
        raise Rejected("bad_field", _A_PATH, "path")


def _check_window(service: Service, import_command: ImportCommand) -> None:
    parse_instant(import_command.window, "window")
    policy, now = service.importing, service.clock()
    if import_command.window < now + policy.lead_ms:
        raise Rejected("past_due", f"{import_command.path}: {policy.too_near}", "path")
    if import_command.window > now + policy.furthest_ms:
        raise Rejected("delay_too_long", f"{import_command.path}: {policy.too_far}", "path")


async def get_ids(service: Service, request: Request) -> Response:
    query = read_query(request, ("first", "max"))
    first, most = read_number(query, "first", 0, MAX_ROWS, 0), read_number(query, "max", MAX_IDS, MAX_IDS)
    id_: str = request.path_params["id"]
    ids = await service.gateway.imported_ids(id_, first, most)
    if ids is None:
        raise _unknown(id_)
    return Response(ids, media_type="application/octet-stream")


def _unknown(id_: str) -> Rejected:
    return Rejected("unknown_import", f"there is no import {shown(id_)}", "id")


async def _import_file(service: Service, request: Request, body: dict[str, Any]) -> ImportCommand:
    """The import command for the file in a request. The whole file is read, unless the request has all fields."""
    check_fields(body, _FIELDS)
    path, link = body.get("path"), body.get("link", False)
    if type(path) is not str:
        raise Rejected("bad_field", _A_PATH, "path")
    _check_path(path)
    if type(link) is not bool:
        raise Rejected("bad_field", f"link must be true or false, not {shown(link)}", "link")
    import_command: ImportCommand | None = None
    if fields := body.keys() & _OF_FILE:
        if missing := sorted(_OF_FILE - fields):
            detail = f"{missing[0]} is missing: all or none of {', '.join(sorted(_OF_FILE))}"
            raise Rejected("bad_field", detail, missing[0])
        import_command = ImportCommand.of({"path": path, "link": link} | {name: body[name] for name in fields})
    if (reason := await asyncio.to_thread(service.importing.refuse_folder, path)) is not None:
        raise Rejected("forbidden", reason, "path")
    if import_command is not None:
        return import_command
    reading = asyncio.create_task(service.inspector.inspect(path, link, service.importing), name=f"inspect {path}")
    try:
        async with service.endings.watch(request.scope, request.receive) as end:
            await end.or_done(reading)
            end.check_grant()
            if reading.done():
                return reading.result()
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if service.closing.is_set():
        raise Unavailable("the server is stopping")
    raise ClientDisconnect


async def list_imports(service: Service, request: Request) -> Response:
    query = read_query(request, ("state", "below", "limit", "after"))
    state, below = query.get("state"), query.get("below", "")
    if state is not None and state not in STATES:
        raise Rejected("bad_query", f"state must be one of {', '.join(STATES)}, not {shown(state)}", "state")
    after = query.get("after")
    limit = None if after is None else PAGE
    if "limit" in query:
        limit = read_number(query, "limit", 0, MAX_LISTED, 0)
    count, statuses = await service.gateway.imports(state, below, limit, after)
    return JsonResponse({"imports": await in_slices(statuses, _shown), "count": count})


async def get_import(service: Service, request: Request) -> Response:
    id_: str = request.path_params["id"]
    status = await service.gateway.import_record(id_)
    if status is None:
        raise _unknown(id_)
    return JsonResponse(_shown(status))


def _shown(one: ImportStatus) -> dict[str, Any]:
    """An import, as the API shows it. The state `pending` means that the shard's answer is not known yet."""
    document: dict[str, Any] = {"id": one.id, "shard": one.shard, "state": "pending", "duplicate": one.known}
    if (record := one.import_record) is None:
        return document
    command = record.import_command
    document |= {
        "state": record.state, "path": command.path, "rows": command.rows, "size": command.size,
        "sha256": command.sha256,
        **times("window", command.window), **times("since", record.at),
    }  # fmt: skip
    return document | {"reason": record.reason} if record.reason else document
