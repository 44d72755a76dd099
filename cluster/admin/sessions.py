"""Sessions of the console as administrative state. Each session uses one of 200 slots, which limits the number of
items."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.state import ItemReader
from duemq.model.callers.session import LoginSession
from duemq.model.errors import Rejected

MAX_SESSIONS: Final = 200
MAX_OF_CALLER: Final = 20

_KIND = "sessions"
_ATTEMPTS = 5  # other processes may use the same slot at the same time
_FORGET_MOST = 5


class Sessions:
    """`clock` returns epoch ms."""

    def __init__(self, admin: AdminLog, clock: Callable[[], int]) -> None:
        self._admin, self._clock = admin, clock
        self._places: dict[str, LoginSession] = {}
        self._by_digest: dict[str, LoginSession] = {}
        self._reader = ItemReader(_KIND, LoginSession.from_value)
        admin.on_change(self._on_change, _KIND)

    def _on_change(self) -> None:
        self._places = self._reader.read(self._admin.state)
        self._by_digest = {session.sha256: session for session in self._places.values()}

    def find(self, digest: str) -> LoginSession | None:
        """The session whose cookie has this SHA-256 digest, if it has not expired."""
        session = self._by_digest.get(digest)
        return None if session is None or session.expires_at <= self._clock() else session

    async def begin(self, session: LoginSession) -> None:
        """Store a session in a free slot, or in the slot of an expired session. If its caller has `MAX_OF_CALLER`
        sessions, it replaces the oldest of these. If no slot is free, it replaces the oldest session of the caller with
        the most sessions. Also removes some expired sessions.

        Raises the errors of `AdminLog.change`.
        """
        for attempt in range(_ATTEMPTS):
            place = self._place_for(session.caller)
            version = self._admin.state.version_of(f"{_KIND}/{place}")
            try:
                await self._admin.change(f"{_KIND}/{place}", session.value(), session.caller, version)
                break
            except Rejected as error:
                if error.code != "conflict" or attempt == _ATTEMPTS - 1:
                    raise
        now, by = self._clock(), session.caller
        expired = [(place, one) for place, one in self._places.items() if one.expires_at <= now]
        for place, session in expired[:_FORGET_MOST]:
            if self._places.get(place) != session:
                continue
            try:
                version = self._admin.state.version_of(f"{_KIND}/{place}")
                await self._admin.change(f"{_KIND}/{place}", None, by, version)
            except Rejected:  # another session took the slot
                return

    def _place_for(self, caller: str) -> str:
        now, unreadable = self._clock(), self._reader.unreadable
        by_caller: dict[str, list[str]] = {}
        for place, session in self._places.items():
            if session.expires_at > now:
                by_caller.setdefault(session.caller, []).append(place)
        if len(own := by_caller.get(caller, ())) >= MAX_OF_CALLER:
            return self._oldest(own)
        for place in map(str, range(MAX_SESSIONS)):
            one = self._places.get(place)
            if place not in unreadable and (one is None or one.expires_at <= now):
                return place
        return self._oldest(max(by_caller.values(), key=len, default=["0"]))

    def _oldest(self, places: Collection[str]) -> str:
        return min(places, key=lambda place: self._places[place].created_at if place in self._places else 0)

    async def end(self, digest: str, by: str) -> None:
        """End a session in all processes. Repeating the call does no harm."""
        for place, session in self._places.items():
            if session.sha256 == digest:
                await self._admin.change(f"{_KIND}/{place}", None, by)
                return
