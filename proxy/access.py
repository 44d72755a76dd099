"""Authenticates and authorizes callers by the API keys in the settings and in the administrative state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.types import Scope as RequestScope

from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.api_keys import ApiKeys
from duemq.model.callers.access import EVERYTHING, Grant, Scope, id_of
from duemq.model.callers.caller import SETTINGS
from duemq.model.callers.session import LoginSession, digest_of, new_session
from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.login.cookie import session_text
from duemq.proxy.login.settings import MAX_TOKEN_BYTES, LoginSettings
from duemq.proxy.rate_limit import RateLimit
from duemq.web.body import header, headers_of

if TYPE_CHECKING:  # the import needs httpx and PyJWT, which most servers lack
    from duemq.proxy.login.tokens import Issuer, VerifiedToken

GRANT: Final = "duemq.grant"
"""Key in a request's scope: the caller's `Grant`."""

SESSION: Final = "duemq.session"
"""Key in a request's scope: the text of its session cookie."""

_OF_PEOPLE: Final = ("/console", "/v1/keys")
"""Paths that people use to create API keys. Requests to them are not counted among the requests without a key, which
the server would refuse once the first key exists."""

OUTER: Final = "duemq.outer"
"""Key in the scope of an API call by the console: the scope of the page's request, with the caller's key or cookie."""

_UNTIL: Final = "duemq.until"  # key in a request's scope: when its bearer token expires (epoch ms)

TOUCHED: Final = "duemq.touched"
"""Key in the scope of a console request: the methods and paths of the API calls that it made to change something, with
the ids listed in their bodies. The trail records these instead of the path of the form."""

UNCHANGED: Final = "duemq.unchanged"
"""Key in the scope of a request that could have changed something but did not, or that makes a routine change. The
trail does not record such a request."""

LOGINS_PER_S: Final = 10
"""The most logins per second by one caller."""

MAX_BATCH_BYTES_OF_TOPICS: Final = 16 << 20
"""The largest batch from a caller whose key is limited to some topics."""

_MAX_CACHED = 1_000  # the most keys and tokens, and the most rate limits, to remember


class Credential(NamedTuple):
    """The grant of a key or token. `until`: when it ends (epoch ms); None: when keys change. `origin`: identifies the
    key or issuer in sessions that begin with this credential, see `LoginSession`."""

    grant: Grant
    until: int | None
    origin: str


class Access:
    """Access control for one server. If `admin` is None, the only keys are `secrets`, which come from the settings, and
    there is no trail.

    `read_consumes`: the scope `read` includes storing consumer cursors.

    Access control is in force if a key exists (even one that was revoked, has expired or was lost), or if it is
    `required`.
    """

    def __init__(
        self,
        secrets: Sequence[str],
        clock: Callable[[], int],
        admin: Administration | None = None,
        issuer: Issuer | None = None,
        *,
        required: bool = False,
        read_consumes: bool = False,
    ) -> None:
        self._read_consumes = read_consumes
        self._secrets = tuple(secret.encode() for secret in secrets)
        self.admin, self._clock, self._required = admin, clock, required
        self.keys = None if admin is None else admin.keys
        self.issuer = issuer
        self._person_origin = f"user:{issuer.settings.issuer}" if issuer else ""
        self.session_ms = (issuer.settings if issuer else LoginSettings()).session
        self._cached: dict[bytes, Credential] = {}
        self._rate_limits: dict[str, RateLimit] = {}
        if admin is not None:
            admin.keys.asked_for = bool(secrets) or required or issuer is not None
            admin.log.on_change(self._cached.clear, "keys")

    def grant(self, request: Request) -> Grant | None:
        """The caller's grant from a key or a session; None if a key is required and the caller presented
        neither a valid key nor a valid session.

        Raises Unavailable while the keys are unknown.
        """
        granted = self._granted(request)
        if granted is EVERYTHING and self.keys is not None and not presented_key(request):
            if not request.scope["path"].startswith(_OF_PEOPLE):
                self.keys.keyless.add(self._clock())
        return granted

    def _granted(self, request: Request) -> Grant | None:
        if not self._is_in_force():
            return EVERYTHING
        presented = presented_key(request)
        if not presented:
            return self._session_grant(request)
        granted = self.key_grant(presented)
        if b"." in presented and (known := self._cached.get(presented)) is not None:  # a token that was verified before
            request.scope[_UNTIL] = known.until
        return granted

    def is_granted(self, scope: RequestScope) -> bool:
        """Whether the caller still has its grant while its request is being answered."""
        outer: RequestScope = scope.get(OUTER, scope)
        if (until := outer.get(_UNTIL)) is not None:
            return bool(self._clock() < until)
        try:
            granted: Grant = outer.get(GRANT, EVERYTHING)
            return self._granted(Request(outer)) == granted
        except Unavailable:
            return False

    def key_grant(self, presented: bytes) -> Grant | None:
        """The grant of a key, or of a bearer token verified before. Raises Unavailable."""
        now = self._clock()
        if (known := self._cached.get(presented)) is not None and (known.until is None or now < known.until):
            self._wait_for_keys()  # the key may have been revoked since
            return known.grant
        credential = self.credential(presented)
        # Keys in the settings are valid even while the other keys are unknown.
        if credential is None or credential.grant.secret:
            return credential and credential.grant
        return self._cache(presented, credential)

    def credential(self, presented: bytes) -> Credential | None:
        """The credential of a key, never of a token; None if the key is not valid. Raises Unavailable."""
        now, digest = self._clock(), sha256(presented).hexdigest()
        # Every secret is compared, so that the time to answer reveals nothing about a near match.
        if any([compare_digest(presented, secret) for secret in self._secrets]):
            return Credential(EVERYTHING._replace(secret=presented), None, f"settings:{digest}")
        if self.keys is None or (id_ := id_of(presented)) is None:
            return None
        self._wait_for_keys()
        key = self.keys.by_id.get(id_)
        if key is None or not key.opened_by(presented, now):
            return None
        return Credential(key.grant(), key.end_of(digest), f"key:{key.id}:{digest}")

    async def token_grant(self, request: Request) -> Grant | None:
        """The caller's grant from a bearer token of the OpenID provider. Raises Unavailable while the provider's keys
        are unknown."""
        presented = presented_key(request)
        if self.issuer is None or presented.count(b".") != 2 or len(presented) > MAX_TOKEN_BYTES:
            return None
        settings = self.issuer.settings
        verified = await self.issuer.verify(presented.decode("latin-1"), settings.audience or settings.client_id)
        if verified is None:
            return None
        request.scope[_UNTIL] = verified.until
        return self._cache(presented, self.person(verified))

    def person(self, verified: VerifiedToken) -> Credential:
        """The credential of a verified token."""
        return Credential(verified.grant, verified.until, self._person_origin)

    def _cache(self, presented: bytes, credential: Credential) -> Grant:
        grant = credential.grant
        if self._read_consumes and Scope.READ in grant.scopes:
            credential = credential._replace(grant=grant._replace(scopes=grant.scopes | {Scope.CONSUME}))
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[presented] = credential
        return credential.grant

    def _session_grant(self, request: Request) -> Grant | None:
        """The grant from the console's session cookie, which is valid for the console's pages only."""
        if self.admin is None or not request.scope["path"].startswith("/console"):
            return None
        if not (text := session_text(request)):
            return None
        self._wait_for_keys()
        session = self.admin.sessions.find(digest_of(text))
        grant = None if session is None else self._grant_of(session, self.admin.keys)
        if grant is not None:
            request.scope[SESSION] = text
        return grant

    def _grant_of(self, session: LoginSession, keys: ApiKeys) -> Grant | None:
        """The grant of a session; None if the session's credential is no longer valid."""
        kind, _, origin = session.origin.partition(":")
        if kind == "key":
            id_, _, digest = origin.partition(":")
            key = keys.by_id.get(id_)
            return key.grant() if key is not None and key.is_opened_by(digest, self._clock()) else None
        if kind == "settings":
            own = (secret for secret in self._secrets if sha256(secret).hexdigest() == origin)
            return next((EVERYTHING._replace(secret=secret) for secret in own), None)
        return session.grant() if session.origin == self._person_origin else None

    async def begin_session(self, credential: Credential) -> tuple[str, int]:
        """Begin a session with this credential. Returns the text of its cookie and its lifetime (ms), which never
        exceeds that of the credential. Raises Rejected."""
        if self.admin is None:
            raise Rejected("not_supported", "this server keeps no sessions")
        now, (grant, until, origin) = self._clock(), credential
        ends = now + self.session_ms if until is None else min(now + self.session_ms, until)
        if ends <= now:
            raise Rejected("unauthorised", "the key or token has expired")
        of_person = (tuple(sorted(grant.scopes)), grant.topics, grant.name) if grant.is_person else ()
        session, text = new_session(grant.caller or SETTINGS, origin, now, ends, *of_person)
        await self.admin.sessions.begin(session)
        return text, ends - now

    def rate_limit(self, grant: Grant) -> RateLimit | None:
        """The caller's rate limit; None if it has none."""
        return self._limit(grant.caller, grant.rate) if grant.rate else None

    def charge_login(self, grant: Grant) -> None:
        """Charge a login to its caller, because every process must read the new session. Raises RateLimited."""
        if (limit := self.rate_limit(grant)) is not None:
            limit.enter()
        self._limit(f"login of {grant.caller}", LOGINS_PER_S, "logins").enter()

    def _limit(self, name: str, rate: int, what: str = "messages and requests") -> RateLimit:
        limit = self._rate_limits.get(name)
        if limit is None or limit.rate != rate:
            if len(self._rate_limits) >= _MAX_CACHED:
                self._rate_limits.clear()
            limit = self._rate_limits[name] = RateLimit(rate, monotonic, what)
        return limit

    def asks_for_keys(self) -> bool:
        try:
            return self._is_in_force()
        except Unavailable:  # no caller is let in while the keys are unknown
            return True

    def _is_in_force(self) -> bool:
        if self.keys is None:
            return bool(self._secrets) or self._required or self.issuer is not None
        if self.keys.asked_for:
            return True
        self._wait_for_keys()
        return not self.keys.would_close

    def why_not_ready(self) -> str | None:
        """Why the keys are not known yet, in a sentence; None if they are."""
        if self.admin is None or self.admin.log.ready.is_set():
            return None
        return self.admin.log.trouble or "the API keys are being read"

    def _wait_for_keys(self) -> None:
        # The reason names brokers and topics, which a caller without a key must not see.
        if self.why_not_ready() is not None:
            trouble = self.admin is not None and self.admin.log.trouble
            raise Unavailable("the API keys cannot be read now" if trouble else "the API keys are being read")


def caller_of(request: Request) -> bytes:
    """The owner of a request's idempotency keys: the id of its API key, so that the owner stays the same when the key
    is rotated, or the text of a key from the settings. Empty if no key is required."""
    grant: Grant = request.scope.get(GRANT, EVERYTHING)
    return grant.caller.encode() or grant.secret


def caller_id(request: Request) -> str:
    """The caller of a request, as in its `Grant`."""
    grant: Grant = request.scope.get(GRANT, EVERYTHING)
    return grant.caller


def namespace_of(request: Request) -> str:
    """See `Grant.namespace`."""
    grant: Grant = request.scope.get(GRANT, EVERYTHING)
    return grant.namespace


def batch_bytes_of(request: Request, most: int) -> int:
    """The largest batch (bytes) from this caller; `most` is the limit for all callers. A batch takes several times its
    size in memory."""
    return min(most, MAX_BATCH_BYTES_OF_TOPICS) if namespace_of(request) else most


def caller_name(request: Request) -> str:
    """The caller as shown in the trail and the administrative log. Empty if no key is required."""
    grant: Grant = request.scope.get(GRANT, EVERYTHING)
    return grant.account


def changed_by(request: Request) -> str:
    """The caller as shown in the history of a message. See `Grant.by`."""
    grant: Grant = request.scope.get(GRANT, EVERYTHING)
    return grant.by


def presented_key(request: Request) -> bytes:
    """The key from `Authorization: Bearer KEY` or `X-API-Key: KEY`; empty without either."""
    if len(headers_of(request.scope)) != len(request.scope["headers"]):
        names = [name for name, _ in request.scope["headers"]]
        for name in (b"authorization", b"x-api-key"):
            if names.count(name) > 1:  # a gateway in front of this server may have checked the other value
                raise Rejected("bad_header", f"{name.decode()} is given twice", name.decode())
    scheme, _, key = (header(request, b"authorization") or "").partition(" ")
    if scheme.lower() != "bearer":
        key = header(request, b"x-api-key") or ""
    return key.strip().encode("latin-1")
