"""The rows of a shard's store. All kinds are in one database, by one-byte prefixes, so that one batch is atomic.

p key                     -> row of a message (model/messages/row.py): pending above the cursor, delivered up to it
e key                     -> how a message ended otherwise: cancelled, dead, purged (`EndedMessage`). It has no row
                             while `d` marks the row as still to be read from a delay file
m first key               -> current key of a moved message
n name                    -> first key | fingerprint of a named message
x window | name           -> (nothing): names by the window in which their messages are due, for purges
t cursor                  -> entry number | commit time: when the cursor got here (one per cycle that moved it)
v applied offset          -> entry number | commit time: when the commands below were applied (one per cycle)
w window start            -> how many messages are pending in this 30-minute window
l window start            -> commit time: when the last message that was due in this window ended
z window | key            -> (nothing): cancelled and dead messages by the window in which they ended, for purges
f window | number         -> metadata of a delay file, whose rows are not in `p`
d key                     -> nothing, or ROWLESS: the message is in a delay file, and was cancelled, moved or
                             dead-lettered since
c window                  -> how many `d` rows the window has
h window                  -> how many of these are ROWLESS: the messages were cancelled, and their `e` have no rows
g window                  -> (nothing): the files of this window are being loaded
a offset                  -> an import, by the offset of its command, with its outcome
y sha256                  -> the offset of the import command with this content
i number                  -> entries of the message index, as a cycle or a build wrote them (storage/message_index)
j class | bucket | number | hash | page
                          -> a page of a sorted run of that index
k                         -> the topics that are indexed, and how far the index is built
u offset                  -> commit time: when this file, not indexed yet, was imported
q topic                   -> how many messages are pending for this topic
q                         -> how far the pending messages are counted (topic_counts.py)
s                         -> position: the last ledger entry, and the lowest possible offset of the next one
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from duemq.model.log.ledger import START, Entry

ROW, ENDED, MOVED, NAME, NAME_DUE, CURSOR, APPLIED, WINDOW = b"p", b"e", b"m", b"n", b"x", b"t", b"v", b"w"
LAST_END, ENDED_IN = b"l", b"z"
IMPORT, CONTENT = b"a", b"y"
DELAY_FILE, DROPPED, DROPS, ROWLESS_COUNT, LOADING = b"f", b"d", b"c", b"h", b"g"
ROWLESS = b"r"
INDEX_CHUNK, INDEX_RUN, INDEX_STATE, INDEX_FILE = b"i", b"j", b"k", b"u"
TOPIC_COUNT = b"q"
POSITION = b"s"

U32, U64 = Struct(">I"), Struct(">Q")
WHEN = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """How far a store has followed the ledger. `ledger_offset`: the lowest possible offset of the next entry."""

    entry: Entry = START
    ledger_offset: int = 0

    def encode(self) -> bytes:
        return U64.pack(self.ledger_offset) + self.entry.encode()

    @staticmethod
    def decode(raw: bytes) -> LedgerPosition:
        return LedgerPosition(Entry.decode(raw[U64.size :]), U64.unpack_from(raw)[0])
