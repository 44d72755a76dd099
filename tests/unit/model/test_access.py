"""API keys: their form, what opens them, rotation and revocation."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.callers.access import EVERYTHING, ApiKey, Grant, Scope, id_of, new_key, rotated
from duemq.model.errors import Rejected

NOW, DAY = 1_795_255_200_000, 24 * 3600 * 1000


def test_a_key_tells_its_id_and_nothing_of_its_text_is_stored() -> None:
    key, text = new_key("shop", ["send"], NOW)
    assert text.startswith(f"duemq_{key.id}_") and id_of(text.encode()) == key.id
    assert key.secrets[0].sha256 == sha256(text.encode()).hexdigest()
    stored = repr(key.value())
    assert text not in stored and text.split("_")[2] not in stored
    assert ApiKey.from_value(key.value()) == key


def test_only_its_text_opens_a_key() -> None:
    key, text = new_key("shop", ["send"], NOW)
    _, other = new_key("shop", ["send"], NOW)
    assert key.opened_by(text.encode(), NOW)
    for presented in (other.encode(), text[:-1].encode(), text.upper().encode(), b"", text.encode() + b" "):
        assert not key.opened_by(presented, NOW)


@given(at=st.integers(0, 77), letter=st.sampled_from(b"0123456789abcdefghz_ \xff"))
def test_a_mistyped_key_is_none(at: int, letter: int) -> None:
    _, text = new_key("shop", ["send"], NOW)
    at %= len(text)
    wrong = text.encode()[:at] + bytes([letter]) + text.encode()[at + 1 :]
    assert wrong == text.encode() or id_of(wrong) is None
    assert id_of(text.encode()[:at]) is None


@given(st.binary(max_size=200))
def test_rubbish_is_no_key(presented: bytes) -> None:
    assert id_of(presented) is None


def test_a_key_expires_at_its_time() -> None:
    key, text = new_key("shop", ["send"], NOW, NOW + DAY)
    assert key.opened_by(text.encode(), NOW + DAY - 1) and not key.opened_by(text.encode(), NOW + DAY)
    assert (key.state(NOW + DAY - 1), key.state(NOW + DAY)) == ("active", "expired")


def test_a_revoked_key_opens_nothing() -> None:
    key, text = new_key("shop", ["send"], NOW)
    assert not key._replace(revoked_at=NOW).opened_by(text.encode(), NOW)
    assert key._replace(revoked_at=NOW).state(NOW) == "revoked"


def test_a_rotated_key_has_two_texts_for_the_overlap() -> None:
    key, first = new_key("shop", ["send"], NOW)
    key, second = rotated(key, NOW, DAY)
    assert id_of(second.encode()) == id_of(first.encode()) == key.id and second != first
    for text, until in ((first, NOW + DAY), (second, NOW + 10 * DAY)):
        assert key.opened_by(text.encode(), until - 1)
    assert not key.opened_by(first.encode(), NOW + DAY)


def test_a_second_rotation_ends_the_overlap_of_the_first() -> None:
    key, first = new_key("shop", ["send"], NOW)
    key, second = rotated(key, NOW, DAY)
    key, third = rotated(key, NOW + 1, DAY)
    assert [key.opened_by(text.encode(), NOW + 2) for text in (first, second, third)] == [False, True, True]


def test_what_ended_is_not_rotated() -> None:
    key, _ = new_key("shop", ["send"], NOW, NOW + 1)
    for ended, now in ((key, NOW + 1), (key._replace(revoked_at=NOW), NOW)):
        with pytest.raises(Rejected, match="make a new one"):
            rotated(ended, now, DAY)


@pytest.mark.parametrize(
    ("name", "scopes", "expires_at", "field"),
    [("", ["send"], None, "name"), ("a\n", ["send"], None, "name"), ("x" * 101, ["send"], None, "name"),
     ("a", [], None, "scopes"), ("a", ["sent"], None, "scopes"), ("a", ["send"], NOW, "expires_at")],
)  # fmt: skip
def test_a_wrong_key_is_refused(name: str, scopes: list[str], expires_at: int | None, field: str) -> None:
    with pytest.raises(Rejected) as error:
        new_key(name, scopes, NOW, expires_at)
    assert (error.value.code, error.value.field) == ("bad_field", field)


def test_an_admin_may_do_everything_and_others_what_they_are_given() -> None:
    assert all(Grant("a", frozenset([Scope.ADMIN])).allows(scope) for scope in Scope)
    assert [scope for scope in Scope if Grant("a", frozenset([Scope.READ])).allows(scope)] == [Scope.READ]


def test_what_a_caller_changes_tells_its_name_and_no_secret() -> None:
    key, _ = new_key("shop", ["send"], NOW)
    assert key.grant().by == "key:shop"
    assert Grant("user:a@b.example", frozenset()).by == "user:a@b.example"
    assert EVERYTHING._replace(secret=b"hunter2").by == "settings"
    assert EVERYTHING.by == ""


def test_a_scope_of_a_newer_version_allows_nothing_here() -> None:
    key, _ = new_key("shop", ["send"], NOW)
    assert ApiKey.from_value(key.value() | {"scopes": ["send", "fly"]}).scopes == (Scope.SEND,)
