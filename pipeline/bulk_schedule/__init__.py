"""Bulk schedule: turn a DataFrame into delay files and hand them over to the server, all or none (ADR 22)."""

import duemq.pipeline.needs_spark  # noqa: F401
