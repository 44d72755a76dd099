"""Builds the headers, signatures and body of the request for one message."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Header, Headers
from duemq.model.destinations.destination import Credentials
from duemq.model.destinations.http import HttpOptions
from duemq.model.destinations.http_headers import legal_value, of_messages, plain
from duemq.model.destinations.secrets import ASYMMETRIC, SYMMETRIC, check_signing_secret
from duemq.relay.headers_json import headers_json
from duemq.relay.http.cloudevents import STRUCTURED_TYPE, binary_headers, structured_body
from duemq.relay.http.template import body_template, header_template

Sign = Callable[[bytes], str]


class Signer:
    """Signs with each secret according to Standard Webhooks (https://www.standardwebhooks.com), so that the receiver
    can check that the request is ours.

    A secret is `whsec_` + 24 to 64 bytes in base64: the signature is HMAC-SHA256, `v1,…`. Or it is `whsk_` + an ed25519
    key in base64 (the seed, or the seed and the public key): the signature is `v1a,…`, which receivers check with the
    public key. Two secrets result in two signatures, separated by a space. Raises ValueError for an invalid secret.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._signs: Final = [_sign_of(secret) for secret in secrets]

    def signature(self, id_: str, timestamp_s: int, body: bytes) -> str:
        """The value of the header `webhook-signature`; empty without secrets."""
        if not self._signs:
            return ""
        signed = b"%s.%d.%s" % (id_.encode(), timestamp_s, body)
        return " ".join([sign(signed) for sign in self._signs])


def _sign_of(secret: str) -> Sign:
    check_signing_secret(secret)
    if secret.startswith(SYMMETRIC):
        return _symmetric(b64decode(secret.removeprefix(SYMMETRIC)))
    return _asymmetric(b64decode(secret.removeprefix(ASYMMETRIC)))


def _symmetric(key: bytes) -> Sign:
    def sign(signed: bytes) -> str:
        return "v1," + b64encode(hmac.digest(key, signed, "sha256")).decode()

    return sign


def _asymmetric(key: bytes) -> Sign:
    # Imported here, because the import takes 30 ms and is not needed for HMAC signatures.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(key[:32])

    def sign(signed: bytes) -> str:
        return "v1a," + b64encode(private.sign(signed)).decode()

    return sign


_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9._:~-]{1,512}")


class OutgoingRequest(NamedTuple):
    headers: list[tuple[str, str]]
    body: bytes


class RequestFormat:
    """Turns messages into requests to one endpoint. Raises ValueError for an invalid secret or template."""

    def __init__(self, options: HttpOptions, credentials: Credentials) -> None:
        self._options: Final = options
        self._signer: Final = Signer([each.get_secret_value() for each in credentials.signing_secrets])
        self._fixed: Final = fixed_headers(credentials)
        names = {plain(name) for name, _ in self._fixed}
        self._templates: Final = [
            (name.lower(), header_template(text)) for name, text in options.headers.items() if plain(name) not in names
        ]
        self._taken: Final = names | {plain(name) for name, _ in self._templates}
        self._allowed: Final = frozenset(map(plain, options.message_headers))
        self._body: Final = body_template(options.body, options.content_type) if options.body else None

    def request(self, message: Message, now_s: float) -> OutgoingRequest:
        """The request for a message. `now_s`: the time of the signature, epoch s."""
        options = self._options
        own = message.headers
        content_type = options.content_type
        content_type_is_own = False
        if self._body is None and own:
            content_type, content_type_is_own = _content_type(own, content_type)
        headers = [("content-type", content_type)]
        if self._body is not None:
            body = self._body.render(message).encode(errors="replace")
        elif options.format == "cloudevents-structured":
            body = structured_body(message, options.type, content_type)
            headers = [("content-type", STRUCTURED_TYPE)]
            content_type_is_own = False
        else:
            body = message.payload
            if options.format == "cloudevents-binary":
                headers += binary_headers(message, options.type)
        headers += self._duemq_headers(message, int(now_s), body)
        headers += [
            (name, template.render(message).strip(" ")[:8_000].strip(" ")) for name, template in self._templates
        ]
        if own:
            headers += self._message_headers(own, content_type_is_own)
        headers += self._fixed
        return OutgoingRequest(headers, body)

    def _duemq_headers(self, message: Message, now_s: int, body: bytes) -> list[tuple[str, str]]:
        id_, identity = message.id, message.identity
        if not _PLAIN_ID.fullmatch(identity):  # any producer may set the id, and a header must contain no line ends
            id_, identity = (quote(text, safe=":~", errors="replace")[-512:] for text in (id_, identity))
        due_ms, key = message.origin.due_ms, message.key
        headers = [
            ("webhook-id", identity), ("webhook-timestamp", str(now_s)), ("idempotency-key", identity),
            ("duemq-id", id_), ("duemq-topic", _topic(message.topic)),
        ]  # fmt: skip
        if signature := self._signer.signature(identity, now_s, body):
            headers.append(("webhook-signature", signature))
        if message.value is None:
            headers.append(("duemq-null", "true"))
        if due_ms is not None:
            headers.append(("duemq-due", str(due_ms)))
        if key is not None:
            headers.append(_key_header(key))
        return headers

    def _message_headers(self, own: list[Header], content_type_is_own: bool) -> list[tuple[str, str]]:
        """The message's headers that HTTP can represent. If any header would be lost or changed, `duemq-headers`
        contains all of them."""
        headers: list[tuple[str, str]] = []
        exact = True
        seen: set[str] = set()
        for name, data in own:
            lower = name.lower()
            exact = exact and name == lower and lower not in seen  # HTTP may lose case and the order of repeated names
            seen.add(lower)
            if lower == "content-type":
                exact = exact and content_type_is_own
                continue
            text = "" if data is None else data.decode("ascii", errors="replace")
            if data is not None and self._may_be_header(name) and legal_value(text):
                headers.append((lower, text))
            else:
                exact = False
        if not exact:
            headers.append(("duemq-headers", headers_json(own)))
        return headers

    def _may_be_header(self, name: str) -> bool:
        read = plain(name)
        return of_messages(name) and read not in self._taken and (not self._allowed or read in self._allowed)


@lru_cache(1_000)
def _topic(topic: str) -> str:
    return quote(topic, errors="replace")


def _content_type(own: Headers, default: str) -> tuple[str, bool]:
    """The payload's content type, and whether it comes from the message's own headers."""
    for name, data in own:
        if name.lower() == "content-type":
            text = (data or b"").decode("ascii", errors="replace")
            return (text, True) if text and legal_value(text) else (default, False)
    return default, False


def _key_header(key: bytes) -> tuple[str, str]:
    text = key.decode("ascii", errors="replace")
    return ("duemq-key", text) if legal_value(text) else ("duemq-key-base64", b64encode(key).decode())


def fixed_headers(credentials: Credentials) -> list[tuple[str, str]]:
    """The headers set in the credentials, which are sent with every request."""
    headers = [(name.lower(), value.get_secret_value()) for name, value in credentials.headers.items()]
    token, password = credentials.token.get_secret_value(), credentials.password.get_secret_value()
    if any(name == "authorization" for name, _ in headers):
        return headers
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    elif credentials.username or password:
        pair = b64encode(f"{credentials.username}:{password}".encode()).decode()
        headers.append(("authorization", f"Basic {pair}"))
    return headers
