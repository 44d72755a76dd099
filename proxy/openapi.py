"""Make the OpenAPI document from the table of endpoints (`table.py`) and the models of `schemas.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import groupby
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from duemq import __version__
from duemq.model.topics.rules import TOPIC_FORM
from duemq.proxy.api.endpoint import JSON, Endpoint, Parameter, ResponseSpec
from duemq.proxy.api.schemas import Problem
from duemq.web.problem import CODES, MEDIA_TYPE, TYPE
from duemq.web.same_origin import SAFE_METHODS

_REF = "#/components/schemas/{model}"
_REQUEST_ID = {"X-Request-ID": {"description": "Names this request in the server's log.", "schema": {"type": "string"}}}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_RATE_LIMIT = {
    "RateLimit-Policy": {"description": 'The rate of the key, as "key";q=500;w=1.', "schema": {"type": "string"}},
    "RateLimit": {"description": 'The remaining part of it, as "key";r=499;t=1.', "schema": {"type": "string"}},
}
_HEADERS_OF = {
    HTTPStatus.SERVICE_UNAVAILABLE: _RETRY_AFTER, HTTPStatus.TOO_MANY_REQUESTS: _RETRY_AFTER | _RATE_LIMIT
}  # fmt: skip
_PATH_PARAMETERS = {
    "id": "A message's id, or the name from its sender, percent-encoded: a slash is %2F.",
    "topic": TOPIC_FORM,
    "consumer": "1 to 128 characters of A-Z a-z 0-9 . _ : -",
    "node": "A node's name, from the cluster's list.",
    "name": "A destination's name; TOPIC.GROUP for a group.",
    "group": "1 to 64 characters of A-Z a-z 0-9 _ -",
    "place": "Partition and offset of a record, as PARTITION:OFFSET.",
}
_MESSAGE_ID = "^[^\\x00-\\x1f\\x7f-\\x9f]{1,128}$"
_IDS_OF = {
    "imports": "An import's id, from the answer to its request.",
    "keys": "A key's id, from the list of keys.",
    "jobs": "A job's id, from the answer to its request.",
}
"""By tag; elsewhere an id is a message's."""
_PATTERNS = {
    "topic": "^[A-Za-z0-9._-]{1,249}$",
    "consumer": "^[A-Za-z0-9._:-]{1,128}$",
    "id": "^[A-Za-z0-9._:-]{1,128}$",
    "node": "^[A-Za-z0-9._-]{1,128}$",
    "name": "^[A-Za-z0-9._-]{1,188}$",
    "group": "^[A-Za-z0-9_-]{1,64}$",
    "place": "^[0-9]{1,5}:[0-9]{1,15}$",
}
_EVERYWHERE = ("unauthorised", "foreign_host", "rate_limited", "internal")
# Errors outside of endpoints: unknown paths and methods, and malformed requests.
NOWHERE = frozenset(("not_found", "method_not_allowed", "malformed_request", "head_too_large"))
_DESCRIPTION = """\
Delayed messages delivered at their millisecond, exactly once, with cancels that tell the truth.

Answers have each time twice: RFC 3339 (`..._at`) and epoch milliseconds (`..._at_ms`). Errors are problem documents
(RFC 9457) with a stable `code`. Unknown fields and parameters are refused."""


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these endpoints."""
    endpoints = tuple(endpoints)
    models = {model: None for endpoint in endpoints for model in _models(endpoint)} | {Problem: None}
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "duemq", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": _without_defaults(schemas["$defs"]),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        # Keys are needed only if the server requires them.
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _models(endpoint: Endpoint) -> Iterator[type[BaseModel]]:
    if endpoint.body is not None:
        yield endpoint.body
    for answer in endpoint.answers.values():
        shapes = answer.body.values() if isinstance(answer.body, Mapping) else (answer.body,)
        yield from (shape for shape in shapes if isinstance(shape, type))


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {str(status): _answer(answer) for status, answer in endpoint.answers.items()}
        | dict(_problems(endpoint)),
    }
    if endpoint.notes:
        operation["description"] = endpoint.notes
    names = re.findall(r"{(\w+)}", endpoint.path)
    in_path = [_path_parameter(name, endpoint) for name in names]
    if parameters := in_path + [_parameter(one) for one in endpoint.parameters]:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content: dict[str, Any] = {JSON: {"schema": _reference(endpoint.body)}}
        if endpoint.examples:
            content[JSON]["examples"] = {name: {"value": value} for name, value in endpoint.examples.items()}
        if endpoint.raw_body:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameter(name: str, endpoint: Endpoint) -> dict[str, Any]:
    of_message = name == "id" and endpoint.tag in ("messages", "dead letters")
    schema = {"type": "string", "pattern": _MESSAGE_ID if of_message else _PATTERNS[name]}
    description = _IDS_OF.get(endpoint.tag, _PATH_PARAMETERS[name]) if name == "id" else _PATH_PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.place,
        "required": one.required,
        "description": one.description,
        "schema": one.schema,
    }


def _answer(answer: ResponseSpec) -> dict[str, Any]:
    headers = _REQUEST_ID | {
        name: {"description": description, "schema": {"type": "string"}} for name, description in answer.headers.items()
    }
    document: dict[str, Any] = {"description": answer.description, "headers": headers}
    if isinstance(answer.body, Mapping):
        document["content"] = {
            media: {"schema": _reference(shape) if isinstance(shape, type) else shape}
            for media, shape in answer.body.items()
        }
    elif answer.body is not None:
        document["content"] = {JSON: {"schema": _reference(answer.body)}}
    return document


def _problems(endpoint: Endpoint) -> Iterator[tuple[str, Any]]:
    """One response per status, with its codes and an example of each."""
    everywhere = {"internal", *(_EVERYWHERE if endpoint.scope is not None else ())}
    if endpoint.method not in SAFE_METHODS:
        everywhere.add("foreign_origin")
    codes = sorted(everywhere.union(endpoint.errors), key=lambda code: (CODES[code].status, code))
    for status, group in groupby(codes, key=lambda code: CODES[code].status):
        examples = {
            code: {
                "value": {
                    "type": TYPE + code,
                    "title": CODES[code].title,
                    "status": status,
                    "detail": "...",
                    "code": code,
                }
            }
            for code in group
        }
        yield (
            str(status),
            {
                "description": f"{HTTPStatus(status).phrase}: {', '.join(examples)}",
                "headers": _REQUEST_ID | _HEADERS_OF.get(HTTPStatus(status), {}),
                "content": {MEDIA_TYPE: {"schema": _reference(Problem), "examples": examples}},
            },
        )


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _without_defaults(schema: Any) -> Any:
    """Remove the models' defaults, which only mark fields as optional: absent differs from empty."""
    if isinstance(schema, dict):
        return {name: _without_defaults(value) for name, value in schema.items() if name != "default"}
    if isinstance(schema, list):
        return [_without_defaults(value) for value in schema]
    return schema
