"""TLS of a destination, by the PEM texts of its credentials."""

from __future__ import annotations

import os
import ssl
from tempfile import TemporaryDirectory

from duemq.model.destinations.destination import Credentials
from duemq.tls.files import strict


class UnusableCredentials(ValueError):
    """A PEM text is not what it should be; the message says which, and nothing of the key."""


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """It compares the server's name with its certificate. Without `ca` it trusts the system's authorities.

    Raises UnusableCredentials.
    """
    context = strict(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.ca:
        try:
            context.load_verify_locations(cadata=credentials.ca)
        except (ssl.SSLError, ValueError):
            raise UnusableCredentials("credentials.ca has no certificates in PEM form") from None
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if credentials.cert:
        _load_certificate(context, credentials.cert, credentials.key.get_secret_value())
    return context


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    # `ssl` reads files alone. The folder is for this user only, and is gone when they are read.
    with TemporaryDirectory(prefix="duemq-") as folder:
        path = os.path.join(folder, "client.pem")
        with open(path, "w") as file:
            file.write(f"{cert}\n{key}\n")
        try:
            context.load_cert_chain(path, password=b"")  # an encrypted key is an error, and no question at a terminal
        except (ssl.SSLError, ValueError):
            text = "credentials.cert and credentials.key are no certificate and its key in PEM form"
            raise UnusableCredentials(text) from None
