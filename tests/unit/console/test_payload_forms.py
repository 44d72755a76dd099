"""The form in which a page shows a payload."""

from __future__ import annotations

import pytest

from duemq.proxy.console.pages.messages import formatted


@pytest.mark.parametrize("form", ["auto", "json"])
@pytest.mark.parametrize(
    ("payload", "shown_as"),
    [
        (b'{"a": [1]}', "json"), (b"[" * 200 + b"]" * 200, "json"),
        (b"[" * 300 + b"]" * 300, "text"),  # orjson reads 1,024 levels and writes 254
        (b"[" * 5_000 + b"]" * 5_000, "text"),
        (b"[" * 250 + b"1," * 30_000 + b"1" + b"]" * 250, "text"),  # 15 MB with its indents
        (b"[broken", "text"),
    ],
)  # fmt: skip
def test_json_is_indented_unless_it_is_too_deep(payload: bytes, shown_as: str, form: str) -> None:
    kind, text = formatted(payload, form)
    assert kind == shown_as and len(text) <= 256 << 10
