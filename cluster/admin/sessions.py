"""Sessions of the console as administrative state: each has one of 200 places, so that the items stay few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duemq.cluster.admin.log import AdminLog
from duemq.model.errors import Rejected
from duemq.model.session import Session

MAX_SESSIONS: Final = 200

_KIND = "sessions"
_ATTEMPTS = 5  # others may take the same place at the same time


class Sessions:
    """`clock` gives epoch ms."""

    def __init__(self, admin: AdminLog, clock: Callable[[], int]) -> None:
        self._admin, self._clock = admin, clock
        self._places: dict[str, Session] = {}
        self._by_digest: dict[str, Session] = {}
        admin.on_change(self._on_change)

    def _on_change(self) -> None:
        self._places = self._admin.state.parsed(_KIND, Session.from_value)
        self._by_digest = {session.sha256: session for session in self._places.values()}

    def find(self, digest: str) -> Session | None:
        """The session whose cookie has this SHA-256, if it has not expired."""
        session = self._by_digest.get(digest)
        return None if session is None or session.expires_at <= self._clock() else session

    async def begin(self, session: Session) -> None:
        """Put it where none is or one has expired, else in place of the one that expires first.

        Raises what `AdminLog.change` raises.
        """
        for attempt in range(_ATTEMPTS):
            place = self._free_place()
            version = self._admin.state.version_of(f"{_KIND}/{place}")
            try:
                await self._admin.change(f"{_KIND}/{place}", session.value(), session.caller, version)
                return
            except Rejected as error:
                if error.code != "conflict" or attempt == _ATTEMPTS - 1:
                    raise

    def _free_place(self) -> str:
        now = self._clock()
        for number in range(MAX_SESSIONS):
            session = self._places.get(str(number))
            if session is None or session.expires_at <= now:
                return str(number)
        return min(self._places, key=lambda place: self._places[place].expires_at)

    async def end(self, digest: str, by: str) -> None:
        """End it everywhere. A repeat does no harm."""
        for place, session in self._places.items():
            if session.sha256 == digest:
                await self._admin.change(f"{_KIND}/{place}", None, by)
                return
