"""Bulk schedule: a DataFrame becomes delay files, which are handed over as a whole (ADR 22)."""

import duemq.pipeline.needs_spark  # noqa: F401
