"""Random records of plain Kafka clients, with what they mean said beside them and not worked out from them."""

from __future__ import annotations

import random

from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import read_key
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, REDRIVE, Change, Draft, schedule_frame
from duemq.model.messages.names import NO_NAME, RETURN_HEADER, Name, of_client, of_idempotency_key, of_return
from duemq.model.messages.plain import ByName
from duemq.model.messages.record import Header, Record, pack_headers, unpack_headers, unpack_record
from duemq.model.topics.rules import NAME_RULE
from tests.support.shard.shard_oracle import Command, Plain

CLIENT_NAMES = tuple(of_client(f"order-{number}") for number in range(10))
KEY_NAMES = tuple(of_idempotency_key(b"caller", key) for key in ("1", "2"))

_RELATIVE: tuple[tuple[str, bytes, int], ...] = (
    ("duemq-delay", b"700", 700), ("duemq-delay", b"1.5s", 1_500), ("x-delay", b"0", 0), ("x-delay", b"30", 30),
    ("x-delay", b"-5", 0),
    ("DELAY", b"1", 1_000), ("DELAY", b"99", 7_200_000), ("DELAY", b"-1", 0),
)  # fmt: skip
_NO_CALLERS = (b"", b"key:\n", b"\xff", b"job:a")
_TARGET = ("duemq-topic", b"one")


def _lying() -> Record:
    """An envelope that says its topic is longer than all of it."""
    frame = bytearray(schedule_frame(Draft("one", b"payload"), 5))
    frame[29 + 22] = 200
    return unpack_record(bytes(frame))


_GARBAGE: tuple[tuple[Record, str], ...] = (
    (Record(b"k", (("x-trace", b"1"),), b"?"), "missing_topic: duemq-topic is required: the name of the topic to "
     "deliver to"),
    (Record(None, (_TARGET, ("duemq-delay", b"-5")), b""), "negative_delay: duemq-delay is negative: -5"),
    (Record(None, (_TARGET, _TARGET, ("x-delay", b"1")), b""), "bad_header: duemq-topic is given twice"),
    (Record(None, (("duemq-cancel", b"a\tb"),), b""), "bad_field: duemq-cancel: no id of this cluster, and a name has "
     f"{NAME_RULE}, not 'a\\tb'"),
    (_lying(), "unknown_field: 'duemq-command' is not a header here; known are DELAY, duemq-cancel, duemq-delay, "
     "duemq-deliver-at, duemq-deliver-now, duemq-expires-after, duemq-expires-at, duemq-import, duemq-key, "
     "duemq-labels, duemq-move, duemq-name, duemq-redrive, duemq-topic, x-delay"),
)  # fmt: skip


def garbage(rng: random.Random) -> Plain:
    return Plain(*rng.choice(_GARBAGE))


def plain_schedule(rng: random.Random, draft: Draft) -> Plain:
    """A draft as a plain client would put it."""
    when, delay = _when(rng, draft.due)
    pairs: list[Header] = [("duemq-topic", draft.topic.encode()), when]
    key = draft.key
    if key is not None and rng.random() < 0.5:
        pairs.append(("duemq-key", key))
        key = b"of the record"
    if draft.labels:
        pairs.append(("duemq-labels", ", ".join(draft.labels).encode()))
    draft = draft._replace(expires=0, fingerprint=b"", name=draft.name if draft.name in CLIENT_NAMES else NO_NAME)
    if draft.name:
        pairs.append(("duemq-name", draft.name[2:]))
    own = list(unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers)))
    rng.shuffle(pairs)
    # What is said in another order is the same content.
    content: object = (sorted(pairs), draft.key, own, draft.payload)
    if draft.name and rng.random() < 0.3:  # as a consumer sends it back: when and why make no other content
        own.append((RETURN_HEADER, b"1"))
        name, content = of_return(draft.name[2:].decode(), draft.topic.encode(), draft.key, draft.payload)
        count, packed = pack_headers(own)
        draft = draft._replace(name=name, header_count=count, headers=packed)
    record = Record(key, tuple(pairs + own if rng.random() < 0.5 else own + pairs), draft.payload)
    return Plain(record, draft._replace(fingerprint=repr(content).encode()), delay)


def is_named(command: Command) -> bool:
    """Whether it is a schedule of a plain client under a name, so that to say it again is a repeat."""
    return isinstance(command, Plain) and isinstance(command.means, Draft) and bool(command.means.name)


def plain_change(rng: random.Random, change: Change, name: Name, ids: IdCodec) -> Plain:
    """A change by id or, where it has one that clients chose, by its name."""
    by_name = name in CLIENT_NAMES and rng.random() < 0.6
    topic_state = name[2:] if by_name else ids.issue(0, *read_key(change.first_key)).encode()
    means = ByName(change.kind, name, change.due, change.by) if by_name else change
    value = change.by.encode() or _NO_CALLERS[sum(change.first_key) % len(_NO_CALLERS)]
    if change.kind != MOVE:
        header = {CANCEL: "duemq-cancel", DELIVER_NOW: "duemq-deliver-now", REDRIVE: "duemq-redrive"}[change.kind]
        return Plain(Record(None, ((header, topic_state), ("x-trace", b"1")), value), means)
    when, delay = _when(rng, change.due)
    return Plain(Record(None, (when, ("duemq-move", topic_state)), value), means, delay)


def _when(rng: random.Random, due: int | None) -> tuple[tuple[str, bytes], int | None]:
    """A header that says when, and how long after the append that is; None for the time `due`."""
    if rng.random() < 0.5:
        return ("duemq-deliver-at", b"%d" % (due or 0)), None
    name, value, delay = rng.choice(_RELATIVE)
    return (name, value), delay
