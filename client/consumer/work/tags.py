"""Tag filters in RocketMQ's syntax: `paid || refunded`, and `*` for all.

The tags of a record are its labels (header `duemq-labels`, set when the message was scheduled) and the values in the
header `tags`, which a producer may set. Both are separated by commas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from duemq.client.consumer.retry.headers import LABELS
from duemq.model.errors import Rejected

ALL = "*"
_HEADERS = frozenset(("duemq-labels", LABELS, "tags"))


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Selects records of a topic: those with any of the tags, or all if there are no tags."""

    tags: frozenset[bytes] = frozenset()

    @staticmethod
    def parse(text: str) -> TagFilter:
        """Raises Rejected `bad_tags`."""
        words = [word.strip() for word in text.split("||")]
        if words == [ALL]:
            return TagFilter()
        if wrong := next((word for word in words if not word or word == ALL or "," in word), None):
            raise Rejected("bad_tags", f"{wrong!r} is not a tag in {text!r}: write `a || b`, or `*` alone", "tags")
        if not all(words):
            raise Rejected("bad_tags", f"a tag is missing in {text!r}: write `a || b`, or `*` alone", "tags")
        return TagFilter(frozenset(word.encode() for word in words))

    @staticmethod
    def any_of(filters: Iterable[TagFilter]) -> TagFilter:
        """The union of the filters."""
        sets = [each.tags for each in filters]
        return TagFilter(frozenset().union(*sets) if all(sets) else frozenset())

    def matches(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether a record with these headers is selected."""
        return not self.tags or any(
            not self.tags.isdisjoint(part.strip() for part in value.split(b","))
            for name, value in headers
            if name in _HEADERS and value
        )

    def __str__(self) -> str:
        return " || ".join(sorted(tag.decode() for tag in self.tags)) or ALL
