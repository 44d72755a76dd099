"""JSON is bounded by its values, not by what looks like one inside of a text."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.errors import Rejected
from duemq.proxy.request import json_body
from duemq.proxy.request.json_body import check_values

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.text('ab"\\,[{', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\,[{', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def has_more(body: bytes, most: int) -> bool:
    try:
        asyncio.run(check_values(body, most, "batch_too_large"))
    except Rejected as error:
        assert error.code == "batch_too_large"
        return True
    return False


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + (sum(map(count, value)) if isinstance(value, list) else 0)


@pytest.mark.parametrize("unit", [b"[]", b"{}", b"0", b'""', b'{"a":[]}'])
def test_many_small_values_are_too_many(unit: bytes) -> None:
    assert has_more(b'{"messages":[' + b",".join([unit] * 5_000) + b"]}", 1_000)


@pytest.mark.parametrize("text", ["," * 9_000, '[{"' * 3_000, "\\" * 9_001, '\\"' * 5_000, '",' * 5_000])
def test_what_stands_in_a_text_is_one_value(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (100, 101, 128 << 10):
        monkeypatch.setattr(json_body, "_PART_BYTES", part)
        assert not has_more(orjson.dumps({"messages": [{"payload": text}] * 3}), 20)


@given(JSON_VALUES, st.integers(3, 40), st.sampled_from([4, 7, 64]))
def test_the_bound_is_about_what_is_counted(value: Any, most: int, part: int) -> None:
    body = orjson.dumps([value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_PART_BYTES", part)
        patch.setattr(json_body, "_QUICK_BYTES", part)
        values = count([value])
        if has_more(body, most):
            # An empty list or object has a mark of its own beside the one in front of it.
            assert 2 * values >= most
        else:
            assert values <= most + 1
