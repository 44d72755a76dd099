"""Message ids: they come back as they were issued, and nothing else is taken for one."""

import string

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.messages.ids import DIRECT, IdCodec, MessageId, peek
from duemq.model.messages.key import make_key
from duemq.model.topics.rules import ID_CHARS

IDS = IdCodec(b"k" * 32)
ISSUED = IDS.issue(3, 1_700_000_000_123, 2**40 + 7, 9)
ALPHABET = string.ascii_letters + string.digits + "-_"


@given(st.integers(0, DIRECT), st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**32 - 1))
def test_round_trip(shard: int, due: int, offset: int, row: int) -> None:
    text = IDS.issue(shard, due, offset, row)
    assert len(text) == ID_CHARS and set(text) <= set(ALPHABET)
    assert IDS.read(text) == peek(text) == MessageId(shard, due, offset, row)
    assert IDS.issue_bytes(shard, due, offset, row) == text.encode()
    assert peek(text).key == make_key(due, offset, row)


def test_a_change_of_any_one_character_is_refused() -> None:
    for place in range(ID_CHARS):
        for other in ALPHABET.replace(ISSUED[place], ""):
            assert IDS.read(ISSUED[:place] + other + ISSUED[place + 1 :]) is None


def test_an_id_of_another_cluster_is_refused() -> None:
    assert IdCodec(b"l" * 32).read(ISSUED) is None


@given(st.text(max_size=40) | st.text(ALPHABET + "+/= \n", min_size=ID_CHARS, max_size=ID_CHARS))
def test_other_text_is_refused(text: str) -> None:
    assert IDS.read(text) is None


def test_other_spellings_of_an_issued_id_are_refused() -> None:
    spelled = next(text for text in (IDS.issue(0, 0, offset) for offset in range(1000)) if {"-", "_"} & set(text))
    assert IDS.read(spelled) is not None
    assert IDS.read(spelled.replace("-", "+").replace("_", "/")) is None
    for more in (" ", "\n", "=", "A"):
        assert IDS.read(ISSUED + more) is None and IDS.read(ISSUED[:-1] + more) != IDS.read(ISSUED)


def test_direct_ids_say_so() -> None:
    assert MessageId(DIRECT, 0, 0).direct and not MessageId(0, 0, 0).direct


@given(
    st.integers(0, DIRECT),
    st.lists(st.integers(0, 2**48 - 1), max_size=5),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**31),
)
def test_many_at_once(shard: int, dues: list[int], offset: int, first: int) -> None:
    found = IDS.issue_many(shard, np.array(dues, np.int64), offset, first)
    assert found == [IDS.issue_bytes(shard, due, offset, first + at) for at, due in enumerate(dues)]
