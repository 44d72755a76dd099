"""The OpenAPI document: complete, consistent in itself, and of one source with the routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from duemq.cli.settings.settings import Settings
from duemq.model.destinations.destination import read_destination
from duemq.proxy.openapi import NOWHERE, describe
from duemq.proxy.request.ingress import FIELDS, Ingress, MessageLimits
from duemq.proxy.table import ENDPOINTS
from duemq.web.problem import CODES, MEDIA_TYPE

DOCUMENT = orjson.loads(orjson.dumps(describe(ENDPOINTS)))
OPERATIONS = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]


TOPIC_PREFIXES = {"dlq", "retry"}


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_endpoint_is_described_once_under_a_name_of_its_own() -> None:
    assert len(OPERATIONS) == len(ENDPOINTS)
    assert len({operation["operationId"] for operation in OPERATIONS}) == len(ENDPOINTS)


def test_references_lead_somewhere_and_nothing_is_left_over() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) == known


def test_every_code_is_answered_somewhere_but_those_kept_for_later() -> None:
    answers = [answer for operation in OPERATIONS for answer in operation["responses"].values()]
    problems = [answer["content"].get(MEDIA_TYPE, {}) for answer in answers if "content" in answer]
    described = {code for problem in problems for code in problem.get("examples", ())}
    assert CODES.keys() - described == NOWHERE


def test_the_message_has_the_fields_that_are_accepted_and_its_examples_are() -> None:
    assert DOCUMENT["components"]["schemas"]["Message"]["properties"].keys() == FIELDS
    billing = read_destination({"name": "billing", "url": "https://example.com"})
    ingress = Ingress(MessageLimits(), destinations=lambda: {"billing": billing})
    for endpoint in ENDPOINTS:
        if endpoint.raw_body:
            for example in endpoint.examples.values():
                ingress.draft(example, 1_795_200_000_000)


def test_the_page_about_the_api_names_every_field_and_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    for code in CODES:
        assert f"`{code}`" in page, code
    for name in FIELDS | {"after", "consumer", "max", "wait", "due_from", "due_to", "limit", "cursor"}:
        assert f"`{name}`" in page, name


def test_each_setting_that_the_document_names_is_one_of_this_version() -> None:
    named = re.findall(r"`([a-z_]+)\.([a-z_0-9]+|\*)", orjson.dumps(DOCUMENT).decode())
    sections = {section for section, _ in named} - TOPIC_PREFIXES
    assert "delay_files" in sections
    assert sections <= Settings.model_fields.keys()
    for section, name in named:
        if section in sections and name != "*":
            assert hasattr(getattr(Settings(), section), name), f"{section}.{name}"
