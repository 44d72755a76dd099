"""Which message a path or a list means."""

from __future__ import annotations

import re

from starlette.requests import Request

from duemq.model.errors import Rejected

# Ids and names both. What cannot be either was never issued, so it is simply unknown.
_TARGET = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def may_exist(target: str) -> bool:
    return _TARGET.fullmatch(target) is not None


def unknown(target: str) -> Rejected:
    shown = target if len(target) <= 128 else f"{target[:128]}..."
    return Rejected("unknown_message", f"no message has the id or name {shown!r}, or it ended too long ago")


def target_of(request: Request) -> str:
    """The `{id}` of a path: an id or a client-chosen name. Raises Rejected `unknown_message`."""
    target: str = request.path_params["id"]
    if not may_exist(target):
        raise unknown(target)
    return target
