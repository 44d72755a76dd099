"""Builds the rules for imported files from the settings."""

from __future__ import annotations

from pathlib import Path

from duemq.cli.settings.settings import Settings
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore, is_object


def import_policy(settings: Settings) -> ImportPolicy:
    """The rules for the files that may be imported. They are the same in the HTTP API and on the nodes."""
    own = settings.limits
    limits = ImportLimits(
        max_payload_bytes=own.max_payload_bytes,
        max_headers=own.max_headers,
        max_headers_bytes=own.max_headers_bytes,
        max_key_bytes=own.max_key_bytes,
        topics=settings.topics.allowed,
    )
    delay_files = settings.delay_files
    return ImportPolicy(
        tuple(Path(place).resolve() for place in delay_files.import_from if not is_object(place)),
        limits,
        patience_ms=delay_files.import_timeout,
        furthest_ms=own.max_delay,
        prefixes=tuple(place for place in delay_files.import_from if is_object(place)),
        store=ObjectStore(
            delay_files.s3_endpoint, delay_files.s3_region, delay_files.s3_access_key, delay_files.s3_secret_key
        ),
    )
