"""Signatures, as an implementation that nobody here wrote checks them."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from duemq.model.destinations.destination import Credentials, read_credentials
from duemq.model.destinations.http import HttpOptions
from duemq.model.errors import Rejected
from duemq.relay.http.request import RequestFormat, Signer
from tests.support.outlets.site import out_message

OLD, NEW = ("whsec_" + b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SEED = bytes(range(32))
PRIVATE = Ed25519PrivateKey.from_private_bytes(SEED)
PUBLIC = PRIVATE.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def signed(credentials: Credentials, payload: bytes) -> tuple[dict[str, str], bytes]:
    headers, body = RequestFormat(HttpOptions(), credentials).request(out_message(payload=payload), time.time())
    return dict(headers), body


@given(st.text())
def test_a_receiver_with_either_secret_knows_it(text: str) -> None:
    headers, body = signed(read_credentials({"signing_secrets": [NEW, OLD]}), text.encode(errors="replace"))
    for secret in (OLD, NEW):
        Webhook(secret).verify(body, headers, json_parse=False)


def test_nobody_else_knows_it_and_nothing_may_change() -> None:
    headers, body = signed(read_credentials({"signing_secrets": [NEW]}), b"payload")
    for secret, data, changed in (
        (OLD, body, {}),
        (NEW, body + b"x", {}),
        (NEW, body, {"webhook-id": "other"}),
        (NEW, body, {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(data, headers | changed, json_parse=False)


def test_the_example_of_the_specification() -> None:
    signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    body = b'{"test": 2432232314}'
    signature = signer.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("key", [SEED, SEED + PUBLIC], ids=["seed", "seed and public key"])
def test_an_asymmetric_signature_is_checked_with_the_public_key(key: bytes) -> None:
    secret = "whsk_" + b64encode(key).decode()
    headers, body = signed(read_credentials({"signing_secrets": [secret, NEW]}), b"\xff\0 bytes")
    first, second = headers["webhook-signature"].split(" ")
    assert second.startswith("v1,")
    version, _, signature = first.partition(",")
    assert version == "v1a"
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    PRIVATE.public_key().verify(b64decode(signature), content)
    with pytest.raises(InvalidSignature):
        PRIVATE.public_key().verify(b64decode(signature), content + b".")


def test_without_a_secret_there_is_no_signature() -> None:
    headers, _ = signed(Credentials(), b"payload")
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == headers["idempotency-key"] == out_message().identity


@pytest.mark.parametrize("secret", [
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64",
    "whsk_" + b64encode(b"x" * 31).decode(),
    "whsec_" + b64encode(b"x" * 65).decode(), "whpk_" + b64encode(PUBLIC).decode(), "whsec_" + "ü" * 40,
])  # fmt: skip
def test_a_secret_that_is_none_is_refused_and_not_told(secret: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_credentials({"signing_secrets": [secret]})
    assert refusal.value.field == "credentials.signing_secrets"
    assert len(secret) < 10 or secret not in refusal.value.detail
