"""What decoders do with bytes that others send: atheris looks for bytes that crash one, or that one wrongly accepts.

    make fuzz                                     # or, with PYTHONPATH=. :
    python -m tests.fuzz.fuzz_decoders --minutes 10
    python -m tests.fuzz.fuzz_decoders --only tokens --minutes 1

Each target runs in a process of its own. Ends with 1 where one failed; atheris leaves the input in `crash-*`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import atheris

with atheris.instrument_imports(include=["duemq"]):
    from duemq.bus.topic_cursor import decode_cursor
    from duemq.cluster.admin.state import AdminState
    from duemq.cluster.admin.trail import TrailEntry
    from duemq.model.callers.access import ApiKey, id_of, new_key
    from duemq.model.callers.session import LoginSession
    from duemq.model.errors import CorruptStore, Rejected
    from duemq.model.frames.frame import Frame, FrameError, FrameReader, pack_request, request_of
    from duemq.model.log.ledger import Barrier, Entry, read_ledger
    from duemq.model.messages import plain
    from duemq.model.messages.ids import IdCodec
    from duemq.model.messages.message import Draft, read_change, read_name, read_schedule, schedule_frame
    from duemq.model.messages.record import Header, StoredRecord, frame_of, pack_headers, pack_record
    from duemq.model.messages.row import read_row, row_of
    from duemq.proxy.login.cookie import read_cookie, session_text
    from duemq.proxy.login.settings import LoginSettings
    from duemq.proxy.login.tokens import Issuer
    from duemq.proxy.request.caller_names import name_in_header
    from duemq.proxy.request.raw_body import read_dashed
    from duemq.web.request_target import target_of
    from duemq.web.same_origin import SameOrigin

from httptools import HttpParserInvalidURLError
from starlette.requests import Request

from tests.support.http.provider import CLIENT, ISSUER, Provider

PLACE = plain.RecordPosition(0, 4, IdCodec(b"0" * 32))
NOW = 1_795_255_200_000
HEADERS = (
    "duemq-topic", "duemq-key", "duemq-deliver-at", "duemq-deliver-after", "duemq-delay-level", "duemq-expires-at",
    "duemq-labels", "duemq-name", "duemq-cancel", "duemq-move", "duemq-header-a", "duemq", "a",
)  # fmt: skip


def records(data: bytes) -> None:
    """Frames of Kafka clients: any bytes, and records with our headers."""
    provider = atheris.FuzzedDataProvider(data)
    frames = [data]
    headers: list[Header] = [
        (
            HEADERS[provider.ConsumeIntInRange(0, len(HEADERS) - 1)],
            provider.ConsumeBytes(40) if provider.ConsumeBool() else None,
        )
        for _ in range(provider.ConsumeIntInRange(0, 6))
    ]
    key = provider.ConsumeBytes(8) if provider.ConsumeBool() else None
    value = provider.ConsumeBytes(64) if provider.ConsumeBool() else None
    frames.append(pack_record(key, headers, value))
    assert plain.read_record(frames[-1]) == (key, tuple(headers), value), "a frame that says something else"
    # Null marks that anybody may have written, in an envelope and after headers.
    count, packed = pack_headers(headers)
    marks = provider.ConsumeBytes(8)
    pairs: list[Header] = [("duemq-null", marks), *headers]
    some, marked = pack_headers([(name, content or b"") for name, content in pairs])
    for draft in (Draft("orders", value, 5, key, some, marked), Draft("orders", value, 5, key, count, packed)):
        read_row(row_of(schedule_frame(draft, 5), b"i" * 32))
    frames.append(frame_of(key, count, packed + marks, value))
    for frame in frames:
        if (fields := read_schedule(frame)) is not None and fields.name_bytes:
            read_name(frame, fields)
        read_change(frame)
        meaning = plain.command_of(frame, NOW, PLACE)
        if isinstance(meaning, bytes):
            assert read_schedule(meaning) is not None, "a schedule that cannot be read"
        assert plain.read_record(plain.dead_letter(frame, 0, 1, "x")) is not None, "a dead letter that cannot be read"


def ledger(data: bytes) -> None:
    try:
        entry = read_ledger(data)
    except CorruptStore:
        return
    assert isinstance(entry, Barrier | Entry) and read_ledger(entry.encode()) == entry


def administrative(data: bytes) -> None:
    """Records of the administrative log and of the trail."""
    record = StoredRecord(0, NOW, pack_record(None, (), data))
    for read in (AdminState(0).apply, TrailEntry.of):
        try:
            read(record)
        except CorruptStore:
            pass


def headers(data: bytes) -> None:
    """Heads of requests."""
    provider = atheris.FuzzedDataProvider(data)
    names = (b"idempotency-key", b"host", b"origin", b"sec-fetch-site", *(name.encode() for name in HEADERS))
    pairs = [
        (names[provider.ConsumeIntInRange(0, len(names) - 1)], provider.ConsumeBytes(30))
        for _ in range(provider.ConsumeIntInRange(0, 6))
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": pairs, "scheme": "http"}
    for read in (
        lambda: name_in_header(Request(dict(scope))), lambda: read_dashed(pairs), lambda: ORIGINS.check(dict(scope)),
    ):  # fmt: skip
        try:
            read()
        except Rejected:
            pass


def frames(data: bytes) -> None:
    """What a client sends after the upgrade: in one piece and byte by byte it is the same."""
    whole, single = list[Frame](), list[Frame]()
    outcomes = []
    for got, pieces in ((whole, [data]), (single, [data[at : at + 1] for at in range(len(data))])):
        reader = FrameReader()
        try:
            for piece in pieces:
                got += reader.feed(piece)
            outcomes.append("")
        except FrameError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1], "it depends on how the bytes arrive"
    for payload in (data, *(frame.payload for frame in single)):
        try:
            request = request_of(payload)
            target_of(request.url)
        except (FrameError, UnicodeDecodeError, HttpParserInvalidURLError):
            continue
        assert request_of(pack_request(request.method.encode(), request.url, request.fields, request.body)) == request


ORIGINS = SameOrigin(("example.com",), ("https://example.com",))
KEY, TEXT = new_key("fuzz", ["admin"], NOW)


def keys(data: bytes) -> None:
    """API keys as callers present them, and as the administrative state has them."""
    id_of(data)
    provider = atheris.FuzzedDataProvider(data)
    text = bytearray(TEXT.encode())
    for _ in range(provider.ConsumeIntInRange(1, 3)):
        text[provider.ConsumeIntInRange(0, len(text) - 1)] = provider.ConsumeIntInRange(0, 255)
    for presented in (data, bytes(text)):
        assert presented == TEXT.encode() or not KEY.opened_by(presented, NOW), "a wrong key opens"
    _value(data, ApiKey.from_value)


def cookies(data: bytes) -> None:
    request = Request({"type": "http", "headers": [(b"cookie", data)], "scheme": "http"})
    read_cookie(request, "duemq_session")
    session_text(request)
    _value(data, LoginSession.from_value)
    try:
        decode_cursor(data.decode("latin-1"), "orders", None, "after")
    except Rejected:
        pass


def _value(data: bytes, read: Callable[[Any], object]) -> None:
    try:
        read(json.loads(data))
    except (KeyError, TypeError, ValueError):
        pass


PROVIDER = Provider()
PROVIDER.publish_ec()
ISSUED = Issuer(LoginSettings(issuer=ISSUER, audience=CLIENT))
GOOD = PROVIDER.token(PROVIDER.ec, "ES256", "e1", exp=int(time.time()) + 10**7)


def tokens(data: bytes) -> None:
    """Any bytes, and a good token with some of them changed: it may only be taken for what it was."""
    provider = atheris.FuzzedDataProvider(data)
    changed = bytearray(GOOD.encode())
    for _ in range(provider.ConsumeIntInRange(1, 4)):
        changed[provider.ConsumeIntInRange(0, len(changed) - 1)] = provider.ConsumeIntInRange(33, 126)
    for text in (data.decode("latin-1"), changed.decode("latin-1")):
        verified = _verify(text)
        assert verified is None or verified.claims == CLAIMS, "a token that was not issued is taken"


def _verify(text: str) -> Any:
    """The keys are known, so nothing is waited for."""
    try:
        ISSUED.verify(text, CLIENT).send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


ISSUED.learn_keys(PROVIDER.published)
ISSUED._asked_at = float("inf")
CLAIMS = _verify(GOOD).claims
TARGETS = {one.__name__: one for one in (records, ledger, administrative, headers, keys, cookies, tokens, frames)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for each target")
    parser.add_argument("--only", choices=TARGETS, help="this target alone, in this process")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.only is not None:
        with tempfile.TemporaryDirectory() as corpus:
            limits = (f"-max_total_time={int(asked.minutes * 60)}", f"-seed={asked.seed}", "-max_len=600")
            atheris.Setup([sys.argv[0], *limits, "-rss_limit_mb=2048", "-verbosity=0", corpus], TARGETS[asked.only])
            atheris.Fuzz()
        return 0
    failed = []
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.fuzz_decoders", "--only", name]
        done = subprocess.run([*command, "--minutes", str(asked.minutes), "--seed", str(asked.seed)], check=False)
        print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
        failed += [name] * (done.returncode != 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
