"""A stage in an S3-compatible store, from which nodes import files (`delay_files.import_from = s3://...`).

Spark uses its own client (`s3a:`). Everything else here uses obstore, because a manifest needs a conditional put
(`If-None-Match: *`). AWS S3, MinIO, Ceph, R2 and other stores support it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import SparkSession

from duemq.model.errors import Unavailable
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.s3a import store_of
from duemq.storage.object_store import wrong_uri

if TYPE_CHECKING:
    from obstore.store import S3Store

_OF_OBSTORE: Final = {
    "endpoint": "endpoint", "region": "region", "access_key": "access_key_id", "secret_key": "secret_access_key",
    "session_token": "session_token",
}  # fmt: skip
"""The fields of an `ObjectStore`, with their names in obstore."""
_CHUNK_BYTES: Final = 8 << 20
_TRIES: Final = 10
_PAUSE_S: Final = 0.2
_RETRIES: Final = 4  # per request; together they take some seconds


@dataclass(frozen=True, slots=True)
class ObjectStage:
    """See `Stage`. `scheme`: the scheme of Spark's URIs for this store. `config`: settings for obstore, which takes all
    others from the AWS variables and roles of each machine."""

    scheme: str
    bucket: str
    prefix: str
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, spark: SparkSession, uri: str, job: str) -> Self:
        """The stage of a job below `s3a://BUCKET/PREFIX`, with the session's settings `spark.hadoop.fs.s3a.*`.

        Raises BadInput.
        """
        scheme, _, rest = uri.partition("://")
        place = f"{rest.rstrip('/')}/{job}"
        if (wrong := wrong_uri(f"s3://{place}")) is not None:
            raise BadInput(f"{uri} cannot be a stage: {wrong}")
        bucket, _, prefix = place.partition("/")
        fields = asdict(store_of(spark, bucket))
        config = tuple((_OF_OBSTORE[name], value) for name, value in fields.items() if value)
        return cls(scheme, bucket, prefix, config)

    @property
    def place(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}"

    def uri(self, name: str) -> str:
        return f"{self.place}/{name}"

    def path(self, name: str) -> str:
        return f"s3://{self.bucket}/{self.prefix}/{name}"

    def make(self) -> None: ...

    def check(self) -> None:
        """Test the conditional put: a store that accepts a second one could accept two manifests for a job."""
        import obstore

        with self._reached() as store:
            name = ".conditional-put"
            obstore.put(store, name, b"")
            if self._put_new(store, name, b"again"):
                raise BadInput(f"{self.place} cannot be a stage: its store has no conditional put (If-None-Match)")

    def read(self, name: str) -> bytes | None:
        import obstore
        from obstore.exceptions import NotFoundError

        with self._reached() as store:
            try:
                return bytes(obstore.get(store, name).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def write_once(self, name: str, content: bytes) -> None:
        for _ in range(_TRIES):
            with self._reached() as store:
                # A store may refuse both of two concurrent writes.
                if self._put_new(store, name, content) or self.read(name) is not None:
                    return
            time.sleep(_PAUSE_S)
        raise JobFailed(f"{self.uri(name)} can be neither written nor read")

    def write(self, name: str, content: bytes) -> None:
        import obstore

        with self._reached() as store:
            obstore.put(store, name, content)

    @staticmethod
    def _put_new(store: S3Store, name: str, content: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            obstore.put(store, name, content, mode="create")
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            return False
        return True

    def files(self, below: str) -> dict[str, int]:
        import obstore

        with self._reached() as store:
            listed = obstore.list(store, prefix=below or None)
            return dict(sorted((one["path"], one["size"]) for page in listed for one in page))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        import obstore
        from obstore.exceptions import NotFoundError

        with TemporaryDirectory(prefix="duemq-stage-") as folder:
            copy = Path(folder) / "file"
            with self._reached() as store, copy.open("wb") as file:
                try:
                    for chunk in obstore.get(store, name).stream(min_chunk_size=_CHUNK_BYTES):
                        file.write(chunk)
                except (NotFoundError, FileNotFoundError) as error:
                    raise FileNotFoundError(f"{self.uri(name)} is not there") from error
            yield copy

    def folders(self) -> list[str]:
        import obstore

        with self._reached() as store:
            prefixes = obstore.list_with_delimiter(store)["common_prefixes"]
            return sorted(str(prefix).rstrip("/").rpartition("/")[2] for prefix in prefixes)

    def remove(self, name: str) -> None:
        import obstore

        with self._reached() as store:
            for page in obstore.list(store, prefix=name):
                obstore.delete(store, [one["path"] for one in page])
            if "." in name:  # a file, which `list` does not return for its own name
                obstore.delete(store, name)

    def tidy(self) -> None: ...

    @contextmanager
    def _reached(self) -> Iterator[S3Store]:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError as error:
            raise BadInput(f"{self.place}: install the extra `duemq[objectstore]`") from error
        options: dict[str, Any] = dict(self.config) | {
            "client_options": {"allow_http": True, "connect_timeout": "5s", "timeout": "60s"},
            "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=60)},
        }
        try:
            yield S3Store(self.bucket, prefix=self.prefix, **options)
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise Unavailable(f"{self.place} cannot be reached: {' '.join(str(error).split())[:300]}") from error
