"""The section `[tracing]` of the settings. OpenTelemetry's environment variables set where spans are sent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from duemq.model.settings import SettingsSection, Switch


class TracingSettings(SettingsSection):
    enabled: Switch = False
    spans_per_s: Annotated[int, Field(ge=1, le=10_000)] = 10
