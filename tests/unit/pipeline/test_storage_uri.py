"""What places are called that Spark writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.pipeline.files.uris import uri_of


@pytest.mark.parametrize(
    "uri", ["s3a://bucket/ids", "hdfs:///out", "file:/tmp/a b", "abfs://c@account.dfs/x", "gs://b/"]
)
def test_a_uri_stays_as_it_is(uri: str) -> None:
    assert uri_of(uri) == uri


def test_a_path_is_one_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri_of("out/a b[1]") == f"file://{tmp_path}/out/a b[1]"
    assert uri_of("/srv/../srv/x/") == "file:///srv/x"
    assert uri_of("time:12") == f"file://{tmp_path}/time:12", "a colon is no scheme"
