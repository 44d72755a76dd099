"""Names: what the bytes of each space are, that no input makes one of another space, and who makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from duemq.model.callers.access import EVERYTHING, Grant, Scope
from duemq.model.errors import Rejected
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import read_name, read_schedule
from duemq.model.messages.names import (
    PURGES,
    RETURN_HEADER,
    Name,
    consumer_cursor,
    former_of_caller,
    group_cursor,
    list_cursor,
    of_caller,
    of_client,
    of_idempotency_key,
    of_redrive,
    of_return,
    shard_of_name,
    text_of,
)
from duemq.model.messages.plain import RecordPosition, command_of
from duemq.model.messages.record import pack_record
from duemq.model.topics.rules import CONSUMER, NAME, is_name
from duemq.proxy.access import GRANT
from duemq.proxy.request.caller_names import client_name, idempotency_name
from tests.support.house.tree import ROOT, modules

PLACE = RecordPosition(0, None, IdCodec(b"k" * 32))
CALLERS = ("", "3fz9k2m4p6q8", "user:ann")

texts = st.from_regex(NAME, fullmatch=True) | st.text(max_size=130)
spaces = st.sampled_from(("n:", "k:", "i:", "d:", "r:", "/", ""))
said = st.builds(str.__add__, spaces, texts)  # also as if it were of another space


def request_of(caller: str) -> Request:
    grant = EVERYTHING if not caller else Grant(caller, frozenset((Scope.SEND,)), topics=("a.*",))
    return Request({"type": "http", GRANT: grant})


def test_the_bytes_of_a_name_are_what_older_versions_wrote_and_newer_ones_will_read() -> None:
    assert of_client("order-17") == b"n:order-17"
    assert of_idempotency_key(b"caller", "key") == b"i:" + bytes.fromhex("654a4dbea19f0c670fb1e454dad9e519")
    assert of_redrive("dlq.g/0/7/5") == b"d:5f45ad7de428c93f21b02f35de9981087a07ca4d"
    assert of_caller("key", "order-17") == b"k:2379d0d3bbea67c339c1cfcf86fba46b:order-17"
    assert of_return("retry-1", b"retry.g", None, b"v")[0] == b"r:retry-1:10c7f0d5b5dfa78dacd004383efd6cb4"


def test_the_longest_name_of_each_space_fits_into_a_command() -> None:
    for longest in ("n" * 128, "\N{SNOWMAN}" * 66 + "nn"):
        assert is_name(longest) and not is_name(longest + "n")
        names = (of_client(longest), of_caller("user:" + "ü" * 100, longest), of_return(longest, b"t", None, b"")[0])
        assert max(map(len, names)) <= 255


def test_a_name_is_any_text_without_control_characters() -> None:
    for name in (
        "order/2027/17",
        "ann@example.com",
        "{guid}",
        "a+b",
        "sha256=abc",
        "größe-1",
        "注文",
        "a b",
        "%2F",
        "..",
        '"',
    ):
        assert is_name(name), name
    for text in ("", "a\nb", "\x00", "\x7f", "\x85", "\udcff", "😀" * 51):
        assert not is_name(text), text


@given(said, st.sampled_from(CALLERS), st.sampled_from(CALLERS))
def test_no_door_yields_a_name_of_another_space(text: str, caller: str, other: str) -> None:
    """Over HTTP, and by every header of a plain client that can name a message."""
    made: list[tuple[str, Name]] = []
    for door in (client_name, idempotency_name):
        try:
            made.append((door.__name__, door(request_of(caller), text)))
        except Rejected:
            continue
    for space, headers in (("plain", ()), ("return", ((RETURN_HEADER, b"1"),))):
        pairs = (("duemq-topic", b"t"), ("duemq-delay", b"1"), ("duemq-name", text.encode(errors="replace")), *headers)
        frame = command_of(pack_record(None, pairs, text.encode(errors="replace")), 5, PLACE)
        if isinstance(frame, bytes):
            fields = read_schedule(frame)
            assert fields is not None
            made.append((space, read_name(frame, fields)[0]))
    allowed = {
        "client_name": b"k:" if caller else b"n:", "idempotency_name": b"i:", "plain": b"n:", "return": b"r:",
    }  # fmt: skip
    for door_name, name in made:
        assert name.startswith(allowed[door_name]), door_name
    if NAME.fullmatch(text) and caller != other:
        assert client_name(request_of(caller), text) != client_name(request_of(other), text)


@given(texts, st.binary(max_size=9), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))
def test_what_is_sent_back_with_other_content_has_another_name(
    text: str, topic: bytes, key: bytes | None, value: bytes | None
) -> None:
    name, content = of_return(text, topic, key, value)
    others = (
        of_return(text, topic + b"x", key, value), of_return(text, topic, (key or b"") + b"x", value),
        of_return(text, topic, key, (value or b"") + b"x"), of_return(text, topic, b"" if key is None else None, value),
    )  # fmt: skip
    assert (name, content) == of_return(text, topic, key, value) and name not in {one for one, _ in others}


@given(st.from_regex(NAME, fullmatch=True), st.integers(1, 1_000))
def test_a_return_is_in_the_shard_where_an_older_server_takes_it_for_a_clients(text: str, shards: int) -> None:
    shard = crc32(b"n:" + text.encode()) % shards
    assert shard_of_name(of_client(text), shards) == shard
    assert shard_of_name(of_return(text, b"t", b"k", b"v")[0], shards) == shard


def test_what_a_caller_named_before_it_had_a_space_is_known() -> None:
    assert former_of_caller(of_caller("user:ann", "a:b")) == of_client("a:b")
    others = of_client("k:x"), of_idempotency_key(b"", "k:"), of_redrive("k:"), of_return("k:", b"", None, None)[0]
    for name in others:
        assert former_of_caller(name) is None


def test_a_name_is_shown_only_to_who_may_look_it_up() -> None:
    own, shared = of_caller("user:ann", "a:b"), of_client("a:b")
    assert [text_of(own, caller) for caller in ("user:ann", "user:bob", "")] == ["a:b", "", ""]
    assert [text_of(shared, caller) for caller in ("user:ann", "")] == ["a:b", "a:b"]
    for name in (b"", of_idempotency_key(b"", "k"), of_redrive("k"), of_return("k", b"", None, None)[0]):
        assert text_of(name, "") == text_of(name, "user:ann") == ""


def test_no_consumer_can_have_the_cursor_of_a_group() -> None:
    name = group_cursor("destination.billing")
    assert not CONSUMER.fullmatch(name) and name != consumer_cursor("destination.billing")


def test_no_consumer_caller_or_group_can_have_the_mark_of_purges() -> None:
    assert not CONSUMER.fullmatch(PURGES) and PURGES[0] not in {list_cursor("a")[0], group_cursor("a")[0]}


def _makers() -> Iterator[str]:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Name" | "CursorName")):
                    yield str(path.relative_to(ROOT))


@pytest.mark.heavy
def test_names_are_made_in_one_file() -> None:
    """A new space is a function beside the others."""
    assert set(_makers()) == {"model/messages/names.py"}
