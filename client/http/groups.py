"""The operations of a group as plans; see `operations.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import orjson

from duemq.client.http.errors import BadTime, RejectedError, Unavailable, Unreachable, from_problem
from duemq.client.http.exchange import Call, Plan, json_of, quoted
from duemq.client.http.fields import text_list
from duemq.client.http.requests import Absent, Delay, time_fields
from duemq.client.http.times import delay_ms
from duemq.client.http.values import ReceivedMessage
from duemq.model.timing import shown

_RECEIPTS: Final = 1_000  # limit for one request
_DURABLE_S: Final = 10.0  # an ack may wait this long for the server's log


def receive(
    topic: str, group: str, most: int, wait: timedelta, visibility: Delay | Absent
) -> Plan[list[ReceivedMessage]]:
    if not isinstance(wait, timedelta):  # a number could mean seconds or ms
        raise BadTime("bad_time", f"wait must be a timedelta, not {shown(wait)}", "wait")
    wait_ms = delay_ms(wait)
    query = {"max": most} | ({"wait": f"{wait_ms}ms"} if wait_ms else {}) | _visibility(visibility)
    body = json_of((yield Call("POST", f"{_group(topic, group)}:receive", query, hold_s=wait_ms / 1000)))
    return [ReceivedMessage.from_json(item) for item in body["messages"]]


def _visibility(visibility: Delay | Absent) -> dict[str, Any]:
    return time_fields({"visibility": visibility})


def ack(topic: str, group: str, receipt: str) -> Plan[None]:
    return _tell(topic, group, "ack", {"receipt": receipt}, safe=True)


def ack_many(
    topic: str, group: str, receipts: Iterable[str]
) -> Plan[list[RejectedError | Unavailable | Unreachable | None]]:
    """Acknowledge messages, at most 1,000 in each request."""
    results: list[RejectedError | Unavailable | Unreachable | None] = []
    listed = text_list("receipts", receipts)
    for start in range(0, len(listed), _RECEIPTS):
        body = orjson.dumps({"receipts": listed[start : start + _RECEIPTS]})
        call = Call("POST", f"{_group(topic, group)}:ack", body=body, hold_s=_DURABLE_S, safe=True)
        response = yield call
        request_id = response.headers.get("X-Request-ID")
        for item in json_of(response)["results"]:
            refused = item.get("error")
            results.append(None if refused is None else from_problem(refused, request_id))
    return results


def nack(topic: str, group: str, receipt: str, delay: Delay | Absent, reason: str, dead_letter: bool) -> Plan[None]:
    fields: dict[str, Any] = {"receipt": receipt} | time_fields({"delay": delay})
    if reason:
        fields["reason"] = reason
    if dead_letter:
        fields["dead_letter"] = True
    return _tell(topic, group, "nack", fields)


def extend(topic: str, group: str, receipt: str, visibility: Delay) -> Plan[None]:
    return _tell(topic, group, "extend", {"receipt": receipt} | _visibility(visibility), safe=True)


def put_group(topic: str, group: str, visibility: Delay | Absent, fields: Mapping[str, Any]) -> Plan[dict[str, Any]]:
    body = orjson.dumps({**fields, **_visibility(visibility)})
    document: dict[str, Any] = json_of((yield Call("PUT", _group(topic, group), body=body, safe=True)))
    return document


def _tell(topic: str, group: str, verb: str, fields: Mapping[str, Any], safe: bool = False) -> Plan[None]:
    call = Call("POST", f"{_group(topic, group)}:{verb}", body=orjson.dumps(fields), hold_s=_DURABLE_S, safe=safe)
    json_of((yield call))


def _group(topic: str, group: str) -> str:
    return f"/v1/topics/{quoted(topic)}/groups/{quoted(group)}"
