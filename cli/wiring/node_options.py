"""Builds the options of a delay node from the settings."""

from __future__ import annotations

from dataclasses import replace

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.import_policy import import_policy
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.delay.core.limits import CycleLimits
from duemq.delay.node import NodeOptions
from duemq.delay.tiering.tiering_policy import TieringPolicy


def node_options(settings: Settings, *, alone: bool, trims: bool, holds: frozenset[int] | None = None) -> NodeOptions:
    delivery, storage = settings.delivery, settings.storage
    linger_ms = settings.embedded.linger_ms if trims else settings.kafka.linger_ms
    return NodeOptions(
        cycle_limits=CycleLimits(
            max_messages=delivery.max_cycle_messages,
            max_bytes=delivery.max_cycle_bytes,
            max_attempts=delivery.max_attempts,
            retry_ms=delivery.retry_delays,
            dead_letter_topic=settings.topics.dead_letter,
            retention_ms=storage.retention,
            min_retention_ms=storage.min_retention,
        ),
        alone=alone,
        trims=trims,
        holds=holds,
        linger_s=linger_ms / 1000,
        delay_files=TieringPolicy(
            settings.delay_files.seal_rows,
            settings.delay_files.seal_windows,
            settings.delay_files.load_ahead,
            rewrite_share=settings.delay_files.rewrite_share,
        ),
        importing=replace(import_policy(settings), copies=1 if alone else _copies(settings)),
        indexed_topics=settings.index.topics,
        topic_partitions=settings.topics.partitions,
        cache_bytes=storage.cache_bytes,
        write_buffer_bytes=storage.write_buffer_bytes,
        flush_interval_s=storage.flush_interval_s,
        flush_bytes=storage.flush_bytes,
        retention_s=settings.embedded.retention / 1000,
        ledger_retention_s=settings.kafka.retention / 1000,
        purge_at=_hour_and_minute(storage.purge_at) if storage.purge_mode == "off_peak" else None,
        marks=Watermarks(
            storage.purge_percent, storage.shorten_percent, storage.refuse_percent, storage.min_free_bytes
        ),
        max_clock_offset_ms=settings.node.max_clock_offset_ms,
        stuck_after_s=delivery.stuck_after_s,
    )


def _copies(settings: Settings) -> int:
    """How many replicas have a copy of an imported file: by default as many as brokers must have of other messages."""
    return settings.delay_files.import_replicas or settings.kafka.min_insync_replicas


def _hour_and_minute(time: str) -> tuple[int, int]:
    hour, minute = map(int, time.split(":"))
    return hour, minute
