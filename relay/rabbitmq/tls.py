"""TLS of a destination, from the PEM texts of its credentials."""

from __future__ import annotations

import os
import ssl
import tempfile

from duemq.model.destinations.destination import Credentials
from duemq.tls.files import strict


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Compares the server's name with its certificate. Without `ca`: the system's authorities.

    Raises ValueError, which tells nothing of the key.
    """
    context = strict(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.ca:
        try:
            context.load_verify_locations(cadata=credentials.ca)
        except (ssl.SSLError, ValueError):
            raise ValueError("credentials.ca has no certificates in PEM form") from None
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if credentials.cert:
        _load_own(context, credentials.cert + "\n" + credentials.key.get_secret_value())
    return context


def _load_own(context: ssl.SSLContext, chain_and_key: str) -> None:
    """OpenSSL reads them from a file alone: one that only this user may read, and only for that long."""
    descriptor, path = tempfile.mkstemp(prefix="duemq-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(chain_and_key)
        context.load_cert_chain(path, password="")  # else it asks for one at the terminal
    except (ssl.SSLError, ValueError):
        raise ValueError("credentials.cert and credentials.key are no certificate and its key in PEM form") from None
    finally:
        os.unlink(path)
