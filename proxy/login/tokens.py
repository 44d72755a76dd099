"""Bearer tokens: JSON Web Tokens from one issuer, checked with PyJWT against the issuer's public keys (RFC 7519, 8725).

The keys are fetched for the first token, then every hour, and when a token refers to an unknown key, but at most twice
a minute. While the issuer is unreachable, known keys stay valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any, Final, NamedTuple

import httpx
import jwt

from duemq.model.callers.access import ROLES, Grant
from duemq.model.callers.caller import PERSON
from duemq.model.errors import Unavailable
from duemq.model.timing import shown
from duemq.proxy.login.settings import LoginSettings

log = logging.getLogger(__name__)

# Only algorithms with public keys: a token that is signed with a shared secret, or not signed, is not accepted.
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Final = (*_RSA, "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_S = 30
_FRESH_S = 3600.0
_AGAIN_S = 30.0
_TIMEOUT_S = 5.0
_MAX_KEYS_BYTES = 1 << 20
_MAX_NAME = 80
_MAX_STATES = 1_000
_ID_ALONE = frozenset(("nonce", "at_hash", "c_hash"))  # claims that identify an ID token (OpenID Connect Core, 2)


class VerifiedToken(NamedTuple):
    """The rights of a token's holder, when they end (epoch ms), and all claims in the token."""

    grant: Grant
    until: int
    claims: Mapping[str, Any]


class _PublishedKey(NamedTuple):
    """A public key of the issuer, and the signature algorithms for which it is valid."""

    public: Any
    algorithms: Sequence[str]


def person_id(issuer: str, subject: str) -> str:
    """The id of a person or program, unique among all issuers."""
    return sha256(f"{issuer}\n{subject}".encode(errors="surrogatepass")).hexdigest()[:24]


class Issuer:
    """The provider in `settings`, and its published documents."""

    def __init__(self, settings: LoginSettings, http: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self._http = http or httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False)
        self._keys: Mapping[str, _PublishedKey] = {}
        self._states: dict[str, None] = {}
        self._document: Mapping[str, Any] | None = None
        self._asked_at = -_FRESH_S
        self._asking = asyncio.Lock()

    async def verify(self, token: str, audience: str) -> VerifiedToken | None:
        """The verified token; None if it is not a valid token from this issuer for this audience, or its holder has no
        role here.

        Raises Unavailable while no keys are known.
        """
        claims = await self._claims(token, audience, ("jwt", "at+jwt"))
        # Keycloak's access tokens may have claims of an ID token, too, but they have the `typ` Bearer.
        if claims is None or (claims.keys() & _ID_ALONE and claims.get("typ") != "Bearer"):
            return None
        return self.by_role(claims)

    def by_role(self, claims: Mapping[str, Any]) -> VerifiedToken | None:
        """The rights from verified claims; None if the claims have no role here."""
        role = self.settings.roles_of(self.role_values(claims))
        if role is None:
            log.info("a valid token of %s has no role here", shown(claims["sub"]), extra={"action": "login.no_role"})
            return None
        name, topics = role
        caller, shown_as = PERSON + person_id(str(claims["iss"]), str(claims["sub"])), self._name_in(claims)
        grant = Grant(caller, frozenset(ROLES[name]), topics=topics, name=shown_as)
        return VerifiedToken(grant, int(claims["exp"]) * 1000, claims)

    def _name_in(self, claims: Mapping[str, Any]) -> str:
        """The name to show next to the id. An unverified email address is not used, because anyone can choose it."""
        claim = self.settings.name_claim
        value = claims.get(claim) if claim != "email" or claims.get("email_verified") in (True, "true") else None
        text = value if isinstance(value, str) and value else f"sub {claims['sub']}"
        return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_NAME])

    def role_values(self, claims: Mapping[str, Any]) -> list[str]:
        """The values of `login.roles_claim`; empty if it is missing."""
        return values_at(claims, self.settings.roles_claim)

    async def id_claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid ID token for the console; else None. Raises Unavailable."""
        client = self.settings.client_id
        claims = await self._claims(token, client, ("jwt",))
        return None if claims is None or claims.get("azp", client) != client else claims  # 3.1.3.7

    def use_state(self, state: str) -> bool:
        """Whether this is the first time in this process that a login with this state ends."""
        if state in self._states:
            return False
        if len(self._states) >= _MAX_STATES:
            del self._states[next(iter(self._states))]
        self._states[state] = None
        return True

    async def _claims(self, token: str, audience: str, types: Sequence[str]) -> Mapping[str, Any] | None:
        """The claims of a valid token from this issuer for this audience; None if it is not valid, has none of these
        types (RFC 8725, 3.11), or is a logout or event token (RFC 8417). Raises Unavailable."""
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            if key is None or str(header.get("typ", "JWT")).lower().removeprefix("application/") not in types:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token, key.public, algorithms=key.algorithms, audience=audience, issuer=self.settings.issuer,
                leeway=_LEEWAY_S, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            return None
        return None if "events" in claims else claims

    async def _key(self, kid: str) -> _PublishedKey | None:
        age_s = monotonic() - self._asked_at
        if age_s > _FRESH_S or (kid not in self._keys and age_s > _AGAIN_S):
            async with self._asking:
                if monotonic() - self._asked_at >= min(age_s, _AGAIN_S):
                    await self._fetch_keys()
        if not self._keys:
            raise Unavailable(f"the keys of {self.settings.issuer} are not known yet")
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _fetch_keys(self) -> None:
        self._asked_at = monotonic()
        try:
            url = self.settings.jwks_url or str((await self.document())["jwks_uri"])
            self.learn_keys((await self._get(url)).get("keys", []))
        except (Unavailable, KeyError, AttributeError, TypeError) as error:
            log.log(
                logging.WARNING if self._keys else logging.ERROR,  # without keys no token is accepted
                "the keys of %s: %s", self.settings.issuer, error, extra={"action": "login.keys"},
            )  # fmt: skip

    def learn_keys(self, published: Sequence[Mapping[str, Any]]) -> None:
        """Use the signing keys in a JWK Set (RFC 7517) from now on. Raises Unavailable if it has none."""
        keys = {
            str(one.get("kid", "")): key
            for one in published
            if one.get("use", "sig") == "sig" and (key := _read_key(one)) is not None
        }
        if not keys:
            raise Unavailable("none of the published keys is supported here")
        self._keys = keys

    async def document(self) -> Mapping[str, Any]:
        """The provider's metadata (OpenID Connect Discovery 1.0). Raises Unavailable."""
        if self._document is None:
            base = self.settings.issuer.rstrip("/")
            document = await self._get(f"{base}/.well-known/openid-configuration")
            if document.get("issuer") != self.settings.issuer:
                raise Unavailable(f"{base} says that it is {document.get('issuer')!r}, not {self.settings.issuer!r}")
            self._document = document
        return self._document

    async def userinfo(self, url: str, access_token: str) -> Mapping[str, Any]:
        """The provider's claims about the token's holder (OpenID Connect Core 1.0, 5.3). Raises Unavailable."""
        bearer = {"Authorization": f"Bearer {access_token}"}
        return await self._ask(lambda: self._http.get(url, headers=bearer), url)

    async def _get(self, url: str) -> Mapping[str, Any]:
        return await self._ask(lambda: self._http.get(url), url)

    async def post_form(self, url: str, fields: Mapping[str, str], auth: httpx.Auth) -> Mapping[str, Any]:
        """Send a form and read its JSON answer, or the JSON error of a 400 (RFC 6749, 5.2).

        Raises Unavailable.
        """
        return await self._ask(lambda: self._http.post(url, data=dict(fields), auth=auth), url, (200, 400))

    async def _ask(self, call: Callable[[], Any], url: str, statuses: tuple[int, ...] = (200,)) -> Mapping[str, Any]:
        try:
            response: httpx.Response = await call()
            document = response.json() if len(response.content) <= _MAX_KEYS_BYTES else None
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"{url} cannot be read: {error or type(error).__name__}") from error
        if response.status_code not in statuses or not isinstance(document, dict):
            raise Unavailable(f"{url} answered {response.status_code} without the expected document")
        return document


def _read_key(published: Mapping[str, Any]) -> _PublishedKey | None:
    """Read a key; None if its kind is not supported. Without `alg`, which is optional (RFC 7517, 4.4), an RSA key is
    valid for all RSA algorithms; a key of any other kind is for a single algorithm."""
    try:
        key = jwt.PyJWK(dict(published))
    except (jwt.PyJWTError, ValueError):
        return None
    if key.algorithm_name not in ALGORITHMS:
        return None
    is_rsa = key.key_type == "RSA" and "alg" not in published
    return _PublishedKey(key.key, _RSA if is_rsa else (key.algorithm_name,))


def values_at(claims: Mapping[str, Any], path: str) -> list[str]:
    """The values of the claim at `path`; dots lead into objects, as in `realm_access.roles`. A string is split into
    words."""
    value: Any = claims
    if path in claims:
        value = claims[path]
    else:
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
