"""How paths and URIs of the pipeline are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import below, local_path, uri_of


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/data/ids", "file:///data/ids"),
        ("/data/a folder/%41[1]", "file:///data/a folder/%41[1]"),
        ("file:/data/ids", "file:/data/ids"),
        ("file:///data/ids", "file:///data/ids"),
        ("FILE:///data", "file:///data"),
        ("hdfs://nn:8020/ids", "hdfs://nn:8020/ids"),
        ("hdfs:///ids", "hdfs:///ids"),
        ("s3a://bucket/ids", "s3a://bucket/ids"),
        ("abfss://box@account.dfs.core.windows.net/ids", "abfss://box@account.dfs.core.windows.net/ids"),
        ("gs://bucket/ids", "gs://bucket/ids"),
        ("dbfs:/tmp/ids", "dbfs:/tmp/ids"),
    ],
)
def test_a_uri_passes_and_a_path_is_one_of_this_machine(given: str, uri: str) -> None:
    assert uri_of(given) == uri


def test_a_relative_path_is_below_the_folder_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri_of("ids") == f"file://{tmp_path}/ids"
    assert uri_of(Path("a:b")) == f"file://{tmp_path}/a:b"
    assert local_path(uri_of("ids")) == tmp_path / "ids"
    assert local_path("file:/data/ids") == local_path("file:///data/ids") == Path("/data/ids")
    assert local_path("hdfs:///ids") is None
    assert below(uri_of("ids"), "x") == f"file://{tmp_path}/ids/x" and below("s3a://b/", "x") == "s3a://b/x"


@pytest.mark.parametrize(
    ("given", "said"),
    [("ftp://host/x", "the scheme ftp: is unknown"), ("file://host/x", "three slashes and no host")],
)
def test_what_spark_cannot_write_to_is_refused_in_a_sentence(given: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        uri_of(given)
