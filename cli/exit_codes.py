"""Exit codes of `duemq`. Scripts depend on them; `docs/reference/cli.md` and `duemq --help` list them."""

from __future__ import annotations

from enum import IntEnum

from duemq.model.errors import DuemqError, Rejected, Unavailable


class Exit(IntEnum):
    DONE = 0
    ERROR = 1
    USAGE = 2
    ALREADY_DELIVERED = 3
    UNKNOWN = 4
    PENDING = 5
    ALREADY_CANCELLED = 6
    REFUSED = 7
    UNAVAILABLE = 8


MEANING = {
    Exit.DONE: "done; the message is cancelled",
    Exit.ERROR: "something else went wrong",
    Exit.USAGE: "the command was not understood",
    Exit.ALREADY_DELIVERED: "too late: already delivered, or in the dead letters",
    Exit.UNKNOWN: "no such message, topic, destination, group, node, key, job or file",
    Exit.PENDING: "not known yet: ask again",
    Exit.ALREADY_CANCELLED: "already cancelled",
    Exit.REFUSED: "refused by the server: the message names the field",
    Exit.UNAVAILABLE: "the server cannot be reached or cannot serve now",
}

BY_CODE = {
    "already_delivered": Exit.ALREADY_DELIVERED,
    "already_cancelled": Exit.ALREADY_CANCELLED,
    "already_dead": Exit.ALREADY_DELIVERED,
    "already_purged": Exit.ALREADY_DELIVERED,
    "unknown_job": Exit.UNKNOWN,
    "unknown_message": Exit.UNKNOWN,
    "unknown_topic": Exit.UNKNOWN,
    "unknown_node": Exit.UNKNOWN,
    "unknown_group": Exit.UNKNOWN,
    "unknown_key": Exit.UNKNOWN,
    "unknown_import": Exit.UNKNOWN,
    "unknown_destination": Exit.UNKNOWN,
}

BY_STATUS = {
    "cancelled": Exit.DONE,
    "already_delivered": Exit.ALREADY_DELIVERED,
    "already_dead": Exit.ALREADY_DELIVERED,
    "unknown": Exit.UNKNOWN,
    "pending": Exit.PENDING,
}
"""The exit code for each status in the results of a bulk cancel."""


def exit_of(error: DuemqError) -> Exit:
    """The exit code for an error from the SDK."""
    from duemq.client.http.errors import PendingError, Unreachable

    if isinstance(error, Rejected):
        return BY_CODE.get(error.code, Exit.REFUSED)
    if isinstance(error, Unavailable | Unreachable):
        return Exit.UNAVAILABLE
    return Exit.PENDING if isinstance(error, PendingError) else Exit.ERROR
