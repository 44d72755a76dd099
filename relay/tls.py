"""TLS to a destination, with the PEM texts of its credentials."""

from __future__ import annotations

import os
import ssl
from tempfile import TemporaryDirectory

from duemq.model.destinations.destination import Credentials
from duemq.tls.files import strict


class UnusableCredentials(ValueError):
    """A PEM text is invalid. The error text says which one, and contains no part of the key."""


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """A context that verifies the server's name. Without `ca`, it trusts the system's authorities.

    Raises UnusableCredentials.
    """
    context = strict(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.ca:
        try:
            context.load_verify_locations(cadata=credentials.ca)
        except (ssl.SSLError, ValueError):
            raise UnusableCredentials("credentials.ca contains no certificates in PEM form") from None
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if credentials.cert:
        _load_certificate(context, credentials.cert, credentials.key.get_secret_value())
    return context


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    # `ssl` reads certificates only from files. The folder is private to this user, and deleted after reading.
    with TemporaryDirectory(prefix="duemq-") as folder:
        path = os.path.join(folder, "client.pem")
        with open(path, "w") as file:
            file.write(f"{cert}\n{key}\n")
        try:
            context.load_cert_chain(path, password=b"")  # an encrypted key is an error, not a prompt on the terminal
        except (ssl.SSLError, ValueError):
            text = "credentials.cert and credentials.key are not a certificate and its key in PEM form"
            raise UnusableCredentials(text) from None
