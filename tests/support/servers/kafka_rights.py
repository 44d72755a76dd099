"""Brokers with an authorizer, and a user of theirs with limited rights."""

from __future__ import annotations

import shlex
import socket
import struct
from collections.abc import Iterable

FORBIDDEN = "forbidden."
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the brokers themselves and the tests, which do not log in
    "allow.everyone.if.no.acl.found": "true",
}

# Of Kafka's protocol: https://kafka.apache.org/protocol#The_Messages_CreateAcls
_CREATE_ACLS, _VERSION = 30, 1
_TOPIC, _GROUP, _CLUSTER = 2, 3, 4
_LITERAL, _PREFIXED = 3, 4
_READ, _WRITE, _CREATE, _ALTER, _DESCRIBE = 3, 4, 5, 7, 8
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12
_DENY, _ALLOW = 2, 3
_RESOURCES = {"--topic": _TOPIC, "--group": _GROUP, "--cluster": _CLUSTER, "--transactional-id": 5}
_RIGHTS = {
    "Read": _READ, "Write": _WRITE, "Create": _CREATE, "Delete": 6, "Describe": _DESCRIBE,
    "DescribeConfigs": _DESCRIBE_CONFIGS, "AlterConfigs": _ALTER_CONFIGS, "IdempotentWrite": _IDEMPOTENT_WRITE,
}  # fmt: skip


def deny_writing(bootstrap: str, user: str, topic: str) -> None:
    """From now on this user may see the topic, and not write to it."""
    entries = [_entry(_TOPIC, topic, _LITERAL, user, _WRITE, _DENY)]
    entries += [_entry(_TOPIC, topic, _LITERAL, user, right, _ALLOW) for right in (_READ, _DESCRIBE, _DESCRIBE_CONFIGS)]
    _create(bootstrap, entries)


def deny_creating(bootstrap: str, user: str) -> None:
    """From now on this user makes no topic whose name begins with `FORBIDDEN`; all else is allowed."""
    # The right to create on the cluster is one to create any topic, so it is denied; the rest of the cluster's rights
    # have to be given then. Topics without an entry of their own are open to everybody.
    entries = [_entry(_CLUSTER, "kafka-cluster", _LITERAL, user, _CREATE, _DENY)]
    entries += [
        _entry(_CLUSTER, "kafka-cluster", _LITERAL, user, right, _ALLOW)
        for right in (_ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE)
    ]
    entries += [
        _entry(_TOPIC, FORBIDDEN, _PREFIXED, user, _CREATE, _DENY),
        _entry(_TOPIC, FORBIDDEN, _PREFIXED, user, _DESCRIBE, _ALLOW),
    ]
    _create(bootstrap, entries)


def deny_topic(bootstrap: str, user: str, topic: str) -> None:
    """From now on this user has no right on the topic."""
    rights = (_READ, _WRITE, _DESCRIBE, _DESCRIBE_CONFIGS)
    _create(bootstrap, [_entry(_TOPIC, topic, _LITERAL, user, right, _DENY) for right in rights])


def deny_group(bootstrap: str, user: str, group: str) -> None:
    """From now on this user has no right on the group."""
    rights = ((_READ, _DENY), (_DESCRIBE, _DENY))
    _create(bootstrap, [_entry(_GROUP, group, _LITERAL, user, right, permission) for right, permission in rights])


def allow(bootstrap: str, user: str, commands: Iterable[str]) -> None:
    """Grant what lines such as `acls --topic orders --operation Read` say, with options as kafka-acls.sh has them."""
    entries = []
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        prefixed = "prefixed" in words
        rights = [_RIGHTS[words[at + 1]] for at, word in enumerate(words) if word == "--operation"]
        option = next(word for word in words if word in _RESOURCES)
        name = "kafka-cluster" if option == "--cluster" else words[words.index(option) + 1]
        pattern = _PREFIXED if prefixed else _LITERAL
        entries += [_entry(_RESOURCES[option], name, pattern, user, right, _ALLOW) for right in rights]
    _create(bootstrap, entries)


def _create(bootstrap: str, entries: list[bytes]) -> None:
    request = struct.pack(">hhihi", _CREATE_ACLS, _VERSION, 1, -1, len(entries)) + b"".join(entries)
    host, port = bootstrap.split(",")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            content = answer.read(size)
    _, _, count = struct.unpack_from(">iii", content)
    assert count == len(entries), content
    place = 12
    for _ in range(count):
        code, length = struct.unpack_from(">hh", content, place)
        assert code == 0, content
        place += 4 + max(length, 0)


def _entry(kind: int, name: str, pattern: int, user: str, right: int, permission: int) -> bytes:
    return (
        struct.pack(">b", kind) + _string(name) + struct.pack(">b", pattern) + _string(f"User:{user}") + _string("*")
        + struct.pack(">bb", right, permission)
    )  # fmt: skip


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
