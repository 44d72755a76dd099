"""The section `[tracing]` of the settings. Where spans go is a matter of OpenTelemetry's own variables."""

from __future__ import annotations

from duemq.model.settings import Section, Switch


class TracingSettings(Section):
    enabled: Switch = False
