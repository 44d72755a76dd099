"""The sections `[storage]`, `[index]` and `[delay_files]` of the settings."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from duemq.model.settings import (
    KIB,
    MIB,
    ORIGIN,
    Duration,
    Percent,
    SettingsSection,
    Size,
    TopicPatterns,
    Words,
    duration,
)
from duemq.model.timing import WINDOW_MS
from duemq.storage.object_store import is_object, wrong_uri

_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)


class StorageSettings(SettingsSection):
    write_buffer_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    cache_bytes: Annotated[Size, Field(ge=MIB)] = 64 * MIB
    flush_interval_s: Annotated[float, Field(gt=0, le=3600)] = 5
    flush_bytes: Annotated[Size, Field(ge=64 * KIB)] = 32 * MIB
    retention: Duration = duration("24h")
    min_retention: Annotated[Duration, Field(ge=60_000)] = duration("10m")
    purge_mode: Literal["continuous", "off_peak"] = "continuous"
    purge_at: str = "04:00"
    purge_percent: Percent = 75
    shorten_percent: Percent = 85
    refuse_percent: Percent = 90
    min_free_bytes: Size = 256 * MIB

    @field_validator("purge_at")
    @classmethod
    def _time(cls, time: str) -> str:
        if not _TIME.fullmatch(time):
            raise ValueError("it must be HH:MM, from 00:00 to 23:59 (UTC)")
        return time

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.purge_percent <= self.shorten_percent <= self.refuse_percent:
            raise ValueError(
                f"purge_percent ({self.purge_percent}), shorten_percent ({self.shorten_percent}) and refuse_percent "
                f"({self.refuse_percent}) must not descend"
            )
        return self


class IndexSettings(SettingsSection):
    topics: TopicPatterns = ()


class DelayFileSettings(SettingsSection):
    """See `TieringPolicy`."""

    seal_rows: Annotated[int, Field(ge=1)] = 5_000
    seal_windows: Annotated[int, Field(ge=1, le=10_000)] = 2
    rewrite_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    load_ahead: Annotated[Duration, Field(ge=60_000, le=duration("24h"))] = duration("10m")
    import_from: Words = ()
    import_timeout: Annotated[Duration, Field(ge=0, le=86_400_000)] = duration("1m")
    import_replicas: Annotated[int, Field(ge=0, le=32)] = 0
    s3_endpoint: str = ""
    s3_region: Annotated[str, Field(pattern=r"^([a-z0-9-]{1,64})?$")] = ""
    s3_access_key: str = ""
    s3_secret_key: Annotated[str, Field(repr=False)] = ""

    @field_validator("load_ahead")
    @classmethod
    def _not_sealed_again(cls, load_ahead: int, info: ValidationInfo) -> int:
        nearest = info.data.get("seal_windows", 1) * WINDOW_MS
        if load_ahead > nearest:
            raise ValueError(
                f"at most 30 minutes for each of delay_files.seal_windows, here {nearest} ms: "
                "a window would be sealed again as soon as it was loaded"
            )
        return load_ahead

    @field_validator("import_from")
    @classmethod
    def _absolute(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if is_object(folder):
                if (wrong := wrong_uri(folder, prefix=True)) is not None:
                    raise ValueError(f"{folder!r}: {wrong}")
            elif not folder.startswith("/"):
                raise ValueError(f"{folder!r} must be an absolute path, or s3://BUCKET/PREFIX")
        return folders

    @field_validator("s3_endpoint")
    @classmethod
    def _is_origin(cls, endpoint: str) -> str:
        if endpoint and not ORIGIN.fullmatch(endpoint):
            raise ValueError("it must be the origin of a store, such as https://minio.example.com:9000")
        return endpoint

    @model_validator(mode="after")
    def _whole_login(self) -> Self:
        if bool(self.s3_access_key) != bool(self.s3_secret_key):
            raise ValueError("s3_access_key and s3_secret_key go together")
        return self
