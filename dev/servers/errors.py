"""Errors of real servers: they are not available, or do not start or stop."""


class LocalError(RuntimeError):
    """A server did not start, or did not stop. The message ends with the last lines of the server's log."""


class NotAvailable(LocalError):
    """This machine has no Java, or no network to fetch the jars. The message says what to install."""
