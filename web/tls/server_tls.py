"""TLS for a server: its context, whose files are checked regularly, and the expiry of its certificate."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from prometheus_client import CollectorRegistry, Gauge

from duemq.background.loop import Loop
from duemq.model.errors import BadConfig
from duemq.tls.certificates import expiry_of
from duemq.tls.contexts import FileContext

log = logging.getLogger(__name__)

_LOOK_S = 60.0  # each new connection checks, too; this is for a server that has none


class ServerTls:
    """`cert`: the file with the certificate; `setting`: the setting that it comes from. Raises BadConfig."""

    def __init__(self, context: FileContext, cert: str, setting: str) -> None:
        self.context = context
        self._cert, self._setting = cert, setting
        self._of: object = None
        self._expires_at = 0.0
        if self.expires_at() <= time.time():
            log.warning("%s: the certificate in %s has expired", setting, cert, extra={"action": "tls"})

    def expires_at(self) -> float:
        """The moment (epoch s) at which the certificate in use expires."""
        if self._of is not self.context.current:
            try:
                self._expires_at = expiry_of(self._cert)
            except BadConfig:
                return self._expires_at  # the file is being written
            self._of = self.context.current
        return self._expires_at

    def measure(self, registry: CollectorRegistry) -> None:
        gauge = Gauge(
            "duemq_tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate in use expires (epoch s)",
            ["setting"],
            registry=registry,
        )
        gauge.labels(self._setting).set_function(self.expires_at)

    def reload_on_signal(self) -> None:
        """Reload the files on SIGHUP, even if they look unchanged."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: self.refresh(force=True))

    def refresh(self, *, force: bool = False) -> None:
        if self.context.refresh(force=force) and self.expires_at() <= time.time():
            log.warning("%s: the new certificate in %s has expired", self._setting, self._cert, extra={"action": "tls"})

    async def watch(self) -> None:
        """Check the files forever."""

        async def turn() -> float:
            self.refresh()
            return _LOOK_S

        await Loop("certificates", turn, expected=(BadConfig,), delay_s=_LOOK_S).run()
