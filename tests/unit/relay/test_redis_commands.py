"""Options of a Redis destination, and the commands that messages become."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from duemq.model.destinations.destination import read_destination
from duemq.model.destinations.redis import RedisOptions
from duemq.model.errors import Rejected
from duemq.relay.base import NotMapped
from duemq.relay.redis.commands import Commands, envelope, fields, with_script
from duemq.relay.redis.script import SCRIPT, SHA
from tests.support.outlets.site import OutRecord, out_message

ID = b"%032x" % 7


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("redis://h", {"kind": "queue"}, "kind"),
        ("redis://h", {"name": "{{ id }}"}, "there are {{ topic }}, {{ key }}"),
        ("redis://h", {"name": "{key}"}, "there are {{ topic }}, {{ key }}"),
        ("redis://h", {"name": "a}"}, "braces are for placeholders"),
        ("redis://h", {"name": ""}, "name"),
        ("redis://h", {"max_length": -1}, "max_length"),
        ("redis://h", {"dedup_window": "8d"}, "dedup_window"),
        ("redis://h", {"kind": "pubsub", "max_length": 1}, "max_length is for streams and lists"),
        ("redis://h", {"kind": "pubsub", "fsync": True}, "fsync and replicas are for streams and lists"),
        ("redis://h", {"require_receiver": True}, "require_receiver is for pubsub"),
        ("redis://h", {"kind": "pubsub", "cluster": True, "require_receiver": True}, "require_receiver is for pubsub"),
        ("redis://h/1", {"cluster": True}, "no databases but 0"),
        ("redis://h/orders", {}, "the number of a database"),
        ("redis://h?db=1", {}, "the number of a database"),
    ],
)
def test_what_cannot_be_is_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(Rejected, match=says):
        read_destination({"name": "redis", "url": url, "options": options})


def test_an_entry_has_all_of_the_message_in_order() -> None:
    message = out_message(7, key=b"\xff", headers=[("a", b"1"), ("b", b"\xfe"), ("a", b"2")], payload=b"\0")
    assert fields(message) == [
        b"id", ID, b"due", b"1795000000000", b"key", b"\xff", b"header:a", b"1", b"header:b", b"\xfe",
        b"header:a", b"2", b"payload", b"\0",
    ]  # fmt: skip


def test_what_did_not_come_by_duemq_has_no_due_time() -> None:
    message = type(out_message())(OutRecord(offset=3, value=None))
    assert fields(message) == [b"id", b"orders:0:3:1795000000000", b"null", b"true", b"payload", b""]
    assert orjson.loads(envelope(message)) == {
        "id": "orders:0:3:1795000000000", "due": None, "key": None, "headers": [], "payload": None,
    }  # fmt: skip


def test_the_marker_is_in_the_slot_of_what_it_marks() -> None:
    words = Commands(RedisOptions(name="to.{{ topic }}.{{ key }}")).words(out_message(7, key=b"{a}%\xff"))
    name = b"to.orders.%7Ba%7D%25\xff"
    marker = b"duemq:{" + name + b"}:" + out_message(7).identity.encode()
    assert words[:9] == ("EVALSHA", SHA, 2, name, marker, 10_800_000, 0, "XADD", b"*")
    assert with_script(words) == ("EVAL", SCRIPT, *words[2:])


def test_without_a_window_it_is_the_plain_command() -> None:
    commands = Commands(RedisOptions(dedup_window=0, max_length=5))
    assert commands.words(out_message(7))[:6] == ("XADD", b"orders", b"MAXLEN", b"~", 5, b"*")
    commands = Commands(RedisOptions(kind="list", dedup_window=0, envelope="none"))
    assert commands.words(out_message(7)) == ("RPUSH", b"orders", b"payload")
    commands = Commands(RedisOptions(kind="list", dedup_window=0, envelope="none", max_length=5))
    assert commands.words(out_message(7)) == ("EVALSHA", SHA, 1, b"orders", 0, 5, "RPUSH", b"payload")


def test_a_name_of_the_key_needs_a_key() -> None:
    commands = Commands(RedisOptions(kind="pubsub", name="{{ key }}", envelope="none"))
    assert commands.words(out_message(7, key=b"")) == ("PUBLISH", b"", b"payload")
    with pytest.raises(NotMapped):
        commands.words(out_message(7))
