"""Every operation of the API as a plan: its calls, and the interpretation of their answers. Pure; see
`exchange.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import orjson

from duemq.client.http.errors import (
    BadTime,
    BatchInterrupted,
    NameConflict,
    NameTaken,
    NotSupported,
    PendingError,
    RejectedError,
    Unavailable,
    Unreachable,
    from_problem,
)
from duemq.client.http.exchange import LAST_CURSOR, Call, Plan, error_of, json_of, quoted
from duemq.client.http.fields import Text, check_arguments, idempotency_header, text_list, text_of
from duemq.client.http.requests import Absent, Delay, Draft, Filter, When, filter_fields, message_body, time_fields
from duemq.client.http.times import delay_ms
from duemq.client.http.values import (
    Cancelled,
    CancelReport,
    CancelResult,
    Cluster,
    FileImport,
    Limits,
    MessageState,
    MoveReport,
    MoveResult,
    Page,
    Record,
    RecordPage,
    Topic,
)
from duemq.model.errors import DuemqError
from duemq.model.timing import shown
from duemq.model.topics.rules import ID_CHARS

M = TypeVar("M")
BatchAnswer = MessageState | RejectedError | Unavailable | Unreachable

_TIMES_OF_JOBS: Final = ("deliver_at", "deliver_after", "shift", "zone")
BATCH_ITEMS, BATCH_BYTES = 10_000, 32 * 1024 * 1024
"""Limits for one `POST /v1/messages:batch`."""
_READ_FILE_S = 600.0  # the server reads the whole file before it answers
_MANY_FILES_S = 60.0  # the server appends thousands of commands before it answers
_TEST_S = 620.0  # the longest timeout of a destination, and a margin
_CANCEL_ALL_S = 600.0  # a filter may match millions of messages, and the answer comes after the last cancel
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
REPEAT_PAUSES_S: Final = (0.2, 1.0, 3.0)
"""Pauses (s) before messages of a batch whose outcome is unknown are sent again, if that is harmless."""


def send(draft: Draft, name: Text | None, if_new: bool, idempotency_key: Text | None) -> Plan[MessageState]:
    headers: dict[str, str] = {}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_header(idempotency_key)
    if name is None:
        safe = idempotency_key is not None
        call = Call("POST", "/v1/messages", body=message_body(draft), headers=headers, safe=safe)
    else:
        if if_new:
            headers["If-None-Match"] = "*"
        call = Call("PUT", _message(text_of("name", name)), body=message_body(draft), headers=headers, safe=True)
    response = yield call
    try:
        return MessageState.from_json(json_of(response), duplicate=response.status_code == 200)
    except NameConflict as error:
        if not if_new:
            raise
        # The answer to a repeat, which has no If-None-Match: another message already had the name.
        raise NameTaken(
            "name_taken", error.detail, error.field, status=412, request_id=error.request_id, **error.extra
        ) from error


def send_batch(
    drafts: Iterable[Draft], handle: Callable[[MessageState], M]
) -> Plan[list[M | RejectedError | Unavailable | Unreachable]]:
    """Send drafts. `handle` turns a receipt into the caller's object."""
    results: list[M | RejectedError | Unavailable | Unreachable] = []
    repeatable: list[bool] = []

    def encoded() -> Iterator[bytes]:
        for draft in drafts:
            repeatable.append(draft.repeatable)
            yield message_body(draft)

    # All drafts are encoded before the first is sent, so that an invalid draft stops the whole batch.
    for messages in list(batch_requests(encoded())):
        first = len(results)
        try:
            answers = yield from _batch_answers(messages, repeatable[first : first + len(messages)])
        except DuemqError as error:
            if not results:
                raise
            raise BatchInterrupted(f"after {len(results)} answers: {error}", results) from error
        results += [handle(answer) if isinstance(answer, MessageState) else answer for answer in answers]
    return results


def _batch_answers(messages: Sequence[bytes], repeatable: Sequence[bool]) -> Plan[list[BatchAnswer]]:
    """The result for each message in one request. A message with an unknown outcome is sent again if that is
    harmless."""
    answers: dict[int, BatchAnswer] = {}
    indexes: Sequence[int] = range(len(messages))
    unknown: Unreachable | None = None
    for pause_s in (0.0, *REPEAT_PAUSES_S):
        body = batch_body(messages[at] for at in indexes)
        try:
            response = yield Call("POST", "/v1/messages:batch", body=body, pause_s=pause_s, whole=True)
            answer = json_of(response)
        except DuemqError as error:
            if answers:
                continue  # the outcome of the repeated messages stays unknown
            if unknown is None:
                if not (isinstance(error, Unreachable) and error.outcome_unknown and all(repeatable)):
                    raise
                unknown = error
            continue  # even if the repeat is refused, the outcome of the first attempt stays unknown
        request_id = response.headers.get("X-Request-ID")
        for at, item in zip(indexes, answer["results"], strict=True):
            refused = item.get("error")
            answers[at] = MessageState.from_json(item) if refused is None else from_problem(refused, request_id)
        indexes = [at for at in indexes if repeatable[at] and isinstance(answers[at], Unreachable)]
        if not indexes:
            break
    if unknown is not None and not answers:
        raise unknown
    return [answers[at] for at in range(len(messages))]


def batch_requests(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The messages in parts, each within the limits of one request."""
    room = BATCH_BYTES - len(batch_body(()))
    part: list[bytes] = []
    size = 0
    for message in messages:
        if part and (len(part) == BATCH_ITEMS or size + len(message) > room):
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message) + 1
    if part:
        yield part


def batch_body(messages: Iterable[bytes]) -> bytes:
    return b'{"messages":[%b]}' % b",".join(messages)


def get(message_id: Text) -> Plan[MessageState]:
    return MessageState.from_json(json_of((yield Call("GET", _message(message_id)))))


def story(message_id: Text) -> Plan[dict[str, Any]]:
    body: dict[str, Any] = json_of((yield Call("GET", f"{_message(message_id)}/story")))
    return body


def list_page(filters: Filter, limit: int, cursor: str | None, path: str = "/v1/messages") -> Plan[Page]:
    query = {**filter_fields(filters), "limit": limit} | ({} if cursor is None else {"cursor": cursor})
    body = json_of((yield Call("GET", path, query)))
    return Page([MessageState.from_json(item) for item in body["messages"]], body["cursor"])


def cancel(message_id: Text, wait_s: float, clock: Callable[[], float]) -> Plan[Cancelled]:
    """Cancel a message. After a 202, the call is repeated for up to `wait_s` seconds on `clock`: repeating a cancel
    returns its answer."""
    deadline, pause_s = clock() + wait_s, 0.0
    while True:
        response = yield Call("DELETE", _message(message_id), pause_s=pause_s, safe=True)
        body = json_of(response)
        if response.status_code != 202:
            return Cancelled(body["id"], body["cancelled_at_ms"], raw=body)
        left_s = deadline - clock()
        if left_s <= 0:
            raise PendingError(f"whether {message_id} is cancelled is not known yet; ask again", str(message_id))
        pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S, left_s)


def cancel_many(ids: Iterable[Text] | None, filters: Filter | None, times: bool) -> Plan[CancelReport]:
    """Cancel messages by ids or by a filter, exactly one of the two. Each request has at most 10,000 ids."""
    if (ids is None) == (filters is None):
        raise TypeError("cancel_many takes either ids or a filter")
    more = {"times": True} if times else {}
    if filters is not None:
        return (yield from _cancel_request({"filter": filter_fields(filters)} | more, _CANCEL_ALL_S))
    results: list[CancelResult] = []
    counts = Counter[str]()
    id_list = text_list("ids", ids)
    for start in range(0, len(id_list), BATCH_ITEMS):
        report = yield from _cancel_request({"ids": id_list[start : start + BATCH_ITEMS]} | more)
        results += report.results
        counts.update(report.counts)
    return CancelReport(tuple(results), dict(counts))


def _cancel_request(body: dict[str, Any], hold_s: float = 0.0) -> Plan[CancelReport]:
    answer = json_of((yield Call("POST", "/v1/messages:cancel", body=orjson.dumps(body), hold_s=hold_s)))
    results = tuple(map(CancelResult.from_json, answer["results"]))
    return CancelReport(results, answer["counts"], answer.get("truncated", False))


def reschedule_many(moves: Iterable[tuple[Text, When]], times: bool, shift_expiry: bool) -> Plan[MoveReport]:
    """Reschedule messages, at most 10,000 in each request."""
    results: list[MoveResult | RejectedError | Unavailable | Unreachable] = []
    counts = Counter[str]()
    move_items = [{"id": text_of("id", id_), **time_fields(when)} for id_, when in moves]
    for start in range(0, len(move_items), BATCH_ITEMS):
        body = {"moves": move_items[start : start + BATCH_ITEMS]} | ({"times": True} if times else {})
        body |= _SHIFT_EXPIRY if shift_expiry else {}
        response = yield Call("POST", "/v1/messages:move", body=orjson.dumps(body))
        answer = json_of(response)
        request_id = response.headers.get("X-Request-ID")
        for item in answer["results"]:
            refused = item.get("error")
            results.append(MoveResult.from_json(item) if refused is None else from_problem(refused, request_id))
        counts.update(answer["counts"])
    return MoveReport(tuple(results), dict(counts))


def reschedule(message_id: Text, when: When, shift_expiry: bool) -> Plan[MessageState]:
    check_arguments("reschedule", when, When.__annotations__)
    fields = time_fields(when) | (_SHIFT_EXPIRY if shift_expiry else {})
    safe = not shift_expiry and "deliver_at" in fields
    return _change(Call("PATCH", _message(message_id), body=orjson.dumps(fields), safe=safe), message_id)


_SHIFT_EXPIRY: Final = {"shift_expiry": True}


def deliver_now(message_id: Text) -> Plan[MessageState]:
    return _change(Call("POST", _message(message_id) + ":deliver-now"), message_id)


def redrive(message_id: Text, topic: str | None = None) -> Plan[MessageState]:
    query = {} if topic is None else {"topic": topic}
    return _change(Call("POST", f"/v1/dlq/{quoted(text_of('id', message_id))}:redrive", query), message_id)


def purge(message_id: Text) -> Plan[MessageState]:
    return _change(Call("POST", f"/v1/dlq/{quoted(text_of('id', message_id))}:purge"), message_id)


def _change(call: Call, message_id: Text) -> Plan[MessageState]:
    # Unlike a cancel, these calls are not repeated after a 202: a relative delay would be counted from a later time,
    # and a second deliver-now would fail with "already delivered" because of the first one.
    response = yield call
    body = json_of(response)
    if response.status_code == 202:
        raise PendingError(f"the outcome for {message_id} is not known yet; ask again", str(message_id))
    return MessageState.from_json(body)


def records(topic: str, after: str | None, consumer: str | None, limit: int, wait: timedelta) -> Plan[RecordPage]:
    if not isinstance(wait, timedelta):  # a number could mean seconds or ms
        raise BadTime("bad_time", f"wait must be a timedelta, not {shown(wait)}", "wait")
    wait_ms = delay_ms(wait)
    query = records_query(after, consumer) | {"max": limit} | ({"wait": f"{wait_ms}ms"} if wait_ms else {})
    body = json_of((yield Call("GET", _records(topic), query, hold_s=wait_ms / 1000)))
    return RecordPage([Record.from_json(topic, item) for item in body["records"]], body["cursor"])


def record_stream(topic: str, after: str | None, consumer: str | None) -> Call:
    return Call("GET", _records(topic), records_query(after, consumer), headers={"Accept": "text/event-stream"})


def records_query(after: str | None, consumer: str | None) -> dict[str, str | int]:
    return {name: value for name, value in (("after", after), ("consumer", consumer)) if value is not None}


def end(topic: str) -> Plan[str | None]:
    response = yield Call("GET", f"/v1/topics/{quoted(topic)}")
    if response.status_code == 404:
        return None
    document = json_of(response)
    cursor: str | None = document["cursor"]
    if cursor is None and document["trouble"] is None:
        detail = f"topic {topic} has {document['partitions']} partitions, more than a cursor can hold"
        raise NotSupported("not_supported", detail, "topic")
    if cursor is None:
        raise Unavailable(f"topic {topic} cannot be read at present: {document['trouble']}")
    return cursor


def committed_cursor(topic: str, consumer: str, known: dict[tuple[str, str], str]) -> Plan[str | None]:
    response = yield Call("GET", _place(topic, consumer))
    known.pop((topic, consumer), None)
    if response.status_code == 204:
        return None
    cursor: str = json_of(response)["cursor"]
    known[topic, consumer] = cursor
    return cursor


def commit(topic: str, consumer: str, cursor: str, known: dict[tuple[str, str], str]) -> Plan[None]:
    """Commit a cursor. `known`: the cursor that this client last committed or looked up, by topic and consumer."""
    expected = known.pop((topic, consumer), None)  # unknown until the answer arrives
    headers = {} if expected is None else {LAST_CURSOR: expected}
    body = orjson.dumps({"cursor": cursor})
    response = yield Call("PUT", _place(topic, consumer), body=body, headers=headers, safe=True)
    if not response.is_success:
        error = error_of(response)
        if isinstance(error, RejectedError) and expected is not None:
            known[topic, consumer] = expected
        raise error
    known[topic, consumer] = cursor


def topics() -> Plan[Sequence[Topic]]:
    body = json_of((yield Call("GET", "/v1/topics")))
    return [Topic(item["topic"], item) for item in body["topics"]]


def topic(name: str) -> Plan[Topic]:
    body = json_of((yield Call("GET", f"/v1/topics/{quoted(name)}")))
    return Topic(name, body)


def import_file(path: str, link: bool, metadata: Mapping[str, str | int]) -> Plan[FileImport]:
    body = {"path": path, "link": link, **metadata}
    hold_s = 0.0 if metadata else _READ_FILE_S
    return FileImport.from_json(json_of((yield Call("POST", "/v1/imports", body=orjson.dumps(body), hold_s=hold_s))))


def import_files(files: Sequence[Mapping[str, str | int]], link: bool) -> Plan[list[FileImport]]:
    body = orjson.dumps({"files": [{**file, "link": link} for file in files]})
    document = json_of((yield Call("POST", "/v1/imports:batch", body=body, hold_s=_MANY_FILES_S)))
    return [FileImport.from_json(item) for item in document["imports"]]


def imported_ids(import_id: str, first: int, most: int) -> Plan[list[str]]:
    path = f"/v1/imports/{quoted(import_id)}/ids"
    response = yield Call("GET", path, {"first": first, "max": most})
    if not response.is_success:
        raise error_of(response)
    text = response.content.decode("ascii")
    return [text[at : at + ID_CHARS] for at in range(0, len(text), ID_CHARS)]


def import_record(import_id: str) -> Plan[FileImport]:
    return FileImport.from_json(json_of((yield Call("GET", f"/v1/imports/{quoted(import_id)}"))))


def imports(state: str | None, below: str) -> Plan[Sequence[FileImport]]:
    query = {name: value for name, value in (("state", state), ("below", below)) if value}
    body = json_of((yield Call("GET", "/v1/imports", query)))
    return [FileImport.from_json(item) for item in body["imports"]]


def count_imports(state: str, below: str) -> Plan[int]:
    count: int = json_of((yield Call("GET", "/v1/imports", {"state": state, "below": below, "limit": 0})))["count"]
    return count


def cluster() -> Plan[Cluster]:
    return Cluster.from_json(json_of((yield Call("GET", "/v1/cluster"))))


def limits() -> Plan[Limits]:
    return Limits.from_json(json_of((yield Call("GET", "/v1/limits"))))


def drain(node: str) -> Plan[None]:
    return _operate(node, "drain")


def resume(node: str) -> Plan[None]:
    return _operate(node, "resume")


def keys() -> Plan[list[dict[str, Any]]]:
    listed: list[dict[str, Any]] = json_of((yield Call("GET", "/v1/keys")))["keys"]
    return listed


def begin_job(body: Mapping[str, Any]) -> Plan[dict[str, Any]]:
    times = {name: value for name, value in body.items() if name in _TIMES_OF_JOBS}
    body = {name: value for name, value in body.items() if name not in times} | time_fields(times)
    return _document(Call("POST", "/v1/jobs", body=orjson.dumps(body), hold_s=_CANCEL_ALL_S))


def jobs() -> Plan[list[dict[str, Any]]]:
    listed: list[dict[str, Any]] = json_of((yield Call("GET", "/v1/jobs")))["jobs"]
    return listed


def job(job_id: str) -> Plan[dict[str, Any]]:
    return _document(Call("GET", f"/v1/jobs/{quoted(job_id)}"))


def change_job(job_id: str, what: str) -> Plan[dict[str, Any]]:
    return _document(Call("POST", f"/v1/jobs/{quoted(job_id)}:{what}"))


def destinations() -> Plan[list[dict[str, Any]]]:
    listed: list[dict[str, Any]] = json_of((yield Call("GET", "/v1/destinations")))["destinations"]
    return listed


def destination(name: str) -> Plan[dict[str, Any]]:
    return _document(Call("GET", _destination(name)))


def declare_destination(name: str, url: str, fields: Mapping[str, Any]) -> Plan[dict[str, Any]]:
    body = orjson.dumps({"name": name, "url": url, **fields})
    return _document(Call("POST", "/v1/destinations", body=body))


def change_destination(name: str, changes: Mapping[str, Any]) -> Plan[dict[str, Any]]:
    return _document(Call("PATCH", _destination(name), body=orjson.dumps(changes)))


def operate_destination(name: str, what: str) -> Plan[dict[str, Any]]:
    hold_s = _TEST_S if what == "test" else 0.0
    return _document(Call("POST", f"{_destination(name)}:{what}", hold_s=hold_s))


def remove_destination(name: str) -> Plan[None]:
    response = yield Call("DELETE", _destination(name))
    if not response.is_success:
        raise error_of(response)


def _destination(name: str) -> str:
    return f"/v1/destinations/{quoted(name)}"


def dead_letters_in(topic: str, page_size: int, cursor: str | None) -> Plan[dict[str, Any]]:
    query: dict[str, str | int] = {"limit": page_size} | ({} if cursor is None else {"cursor": cursor})
    return _document(Call("GET", f"/v1/dlq/topics/{quoted(topic)}", query))


def dead_letter_in(topic: str, place: str) -> Plan[dict[str, Any]]:
    return _document(Call("GET", f"/v1/dlq/topics/{quoted(topic)}/{quoted(place)}"))


def create_key(
    name: str,
    scopes: Iterable[str],
    expires_after: Delay | Absent,
    role: str | None,
    topics: Iterable[str],
    rate: int,
    confirm: bool,
) -> Plan[dict[str, Any]]:
    body = key_fields(name, scopes, expires_after, role, topics, rate, confirm)
    return _document(Call("POST", "/v1/keys", body=orjson.dumps(body)))


def key_fields(
    name: str,
    scopes: Iterable[str],
    expires_after: Delay | Absent,
    role: str | None,
    topics: Iterable[str],
    rate: int,
    confirm: bool,
) -> dict[str, Any]:
    """The request body for a new key. The server refuses scopes together with a role."""
    fields: dict[str, Any] = {"name": name}
    allowed, patterns = text_list("scopes", scopes), text_list("topics", topics)
    if allowed or role is None:
        fields["scopes"] = allowed
    if role is not None:
        fields["role"] = role
    if patterns:
        fields["topics"] = patterns
    if rate:
        fields["rate"] = rate
    if not confirm:
        fields["confirm"] = False
    return fields | time_fields({"expires_after": expires_after})


def rotate_key(key_id: str, overlap: Delay | Absent) -> Plan[dict[str, Any]]:
    body = time_fields({"overlap": overlap})
    return _document(Call("POST", f"/v1/keys/{quoted(key_id)}:rotate", body=orjson.dumps(body)))


def revoke_key(key_id: str) -> Plan[dict[str, Any]]:
    return _document(Call("DELETE", f"/v1/keys/{quoted(key_id)}"))


def trail(limit: int, cursor: str | None) -> Plan[dict[str, Any]]:
    return _document(Call("GET", "/v1/trail", {"limit": limit} | ({} if cursor is None else {"cursor": cursor})))


def _document(call: Call) -> Plan[dict[str, Any]]:
    document: dict[str, Any] = json_of((yield call))
    return document


def _operate(node: str, what: str) -> Plan[None]:
    json_of((yield Call("POST", f"/v1/cluster/nodes/{quoted(node)}:{what}")))


def _message(message_id: Text) -> str:
    return f"/v1/messages/{quoted(text_of('id', message_id))}"


def _place(topic: str, consumer: str) -> str:
    return f"/v1/topics/{quoted(topic)}/consumers/{quoted(consumer)}"


def _records(topic: str) -> str:
    return f"/v1/topics/{quoted(topic)}/records"
