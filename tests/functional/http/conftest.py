"""The fixture of tests that run over plain TCP and over TLS."""

from tests.support.http.raw_site import way

__all__ = ["way"]
