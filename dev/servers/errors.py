"""Errors of real servers: not available, or not starting or stopping."""


class LocalError(RuntimeError):
    """A server did not start, or did not stop. The message ends with the last lines of its log."""


class NotAvailable(LocalError):
    """This machine has no Java, or no network to fetch the jars. The message says what to install."""
