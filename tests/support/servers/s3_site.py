"""An S3-compatible store for tests: moto's server, a process on the loopback that can be paused and stopped."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from pyarrow.fs import S3FileSystem

from duemq.dev.servers.jars import jars
from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process
from duemq.storage.object_store import ObjectStore

ACCESS_KEY, SECRET_KEY, REGION = "tests", "tests-secret", "us-east-1"
JARS = Path(__file__).with_name("s3a_jars.txt")
_START_S = 120.0


class S3Site:
    """`store`: how duemq reaches it. Objects are in its memory, and lost when it stops."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.endpoint = f"http://{HOST}:{port}"
        self.store = ObjectStore(self.endpoint, REGION, ACCESS_KEY, SECRET_KEY)
        command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
        self.process = Process("s3", command, folder / "s3.log", environment=dict(os.environ))

    def start(self) -> None:
        self.process.start()
        self.process.until(self._answers, _START_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def bucket(self) -> str:
        """A new one, of no other test."""
        name = f"b-{token_hex(6)}"
        self.files(allow_bucket_creation=True).create_dir(name)
        return name

    def files(self, **more: bool) -> S3FileSystem:
        return S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, scheme="http",
            endpoint_override=self.endpoint.removeprefix("http://"), **more,
        )  # fmt: skip

    def put(self, key: str, content: bytes) -> str:
        """The URI of an object at `BUCKET/KEY`."""
        with self.files().open_output_stream(key) as out:
            out.write(content)
        return f"s3://{key}"

    def keys(self, below: str) -> list[str]:
        """Of the objects below `BUCKET/PREFIX`, sorted."""
        from pyarrow.fs import FileSelector

        found = self.files().get_file_info(FileSelector(below, recursive=True, allow_not_found=True))
        return sorted(one.path for one in found if one.is_file)

    @property
    def variables(self) -> dict[str, str]:
        """Those of the AWS SDKs that lead here."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    @property
    def of_spark(self) -> dict[str, str]:
        """Settings of Spark that lead here, with the jars of its client."""
        own = {
            "endpoint": self.endpoint, "endpoint.region": REGION, "access.key": ACCESS_KEY, "secret.key": SECRET_KEY,
            "path.style.access": "true", "connection.ssl.enabled": "false",
        }  # fmt: skip
        found = ",".join(map(str, sorted(jars(None, JARS).glob("*.jar"))))
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in own.items()} | {"spark.jars": found}


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Site]:
    """One store for all tests, each of which uses a bucket of its own and leaves it running."""
    site = S3Site(tmp_path_factory.mktemp("s3"))
    site.start()
    try:
        yield site
    finally:
        site.process.stop()
