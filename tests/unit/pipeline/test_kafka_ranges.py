"""Offsets of topics and their retention, as Kafka says them."""

from __future__ import annotations

import pytest

from duemq.model.errors import BadConfig
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.kafka import JavaKafka, client, configured, options_of, reading
from duemq.pipeline.logs.ranges import Logs, Retention, TopicRange
from tests.support.servers.fake_kafka import FakeKafka, records


def test_ranges_of_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKafka().topic("a", records([10, 20, 30], start=5), records([])).topic("b", records([20]))
    logs = fake.answers(monkeypatch)
    whole = logs.ranges(["a", "b"])
    assert whole["a"] == TopicRange("a", {0: 5, 1: 0}, {0: 8, 1: 0}, {0: 5, 1: 0}) and whole["b"].count == 1
    part = logs.ranges(["a", "b"], 15, 30)
    assert (part["a"].starts, part["a"].ends, part["b"].count) == ({0: 6, 1: 0}, {0: 7, 1: 0}, 1)
    assert logs.ranges(["a"], 99)["a"].count == 0 and logs.ranges(["a"], -5)["a"].count == 3
    assert logs.ranges([]) == {} and logs.retention([]) == {} and logs.first_times([]) == {}
    assert logs.first_times(["a", "b"]) == {("a", 0): 10, ("b", 0): 20}
    assert fake.requests["opened"] == fake.requests["closed"]
    with pytest.raises(BadInput, match="no topic c"):
        logs.ranges(["a", "c"])


def test_one_connection_for_what_belongs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKafka().topic("a", records([10])).topic("__internal", records([1]))
    logs = fake.answers(monkeypatch)
    with logs.connected():
        assert logs.topics() == ["a"]
        logs.ranges(["a"])
        fake.topic("b", records([1]))
        assert "b" in logs.ranges(["b"]), "a topic that came later is asked about anew"
    assert (fake.requests["opened"], fake.requests["closed"], fake.requests["topics"]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Retention()),
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, Retention(5, -1)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "9"}, Retention(-1, -1, True)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, Retention(5, -1, True)),
    ],
)
def test_retention(config: dict[str, str], expected: Retention) -> None:
    assert Retention.of(config) == expected


OAUTH = {
    "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauthbearer.token.endpoint.url": "https://login/token",
}  # fmt: skip


def test_options_of_java_go_to_spark_as_they_are() -> None:
    kafka = configured("a:1", OAUTH | {"kafka.fetch.max.bytes": "7"}, {})
    assert isinstance(kafka, JavaKafka) and kafka.java_login and options_of(kafka).bootstrap == "a:1"
    assert {name: reading(kafka)[name] for name in OAUTH} == OAUTH and client(kafka)["kafka.fetch.max.bytes"] == "7"
    assert reading(kafka)["kafka.isolation.level"] == "read_committed"
    assert "login/token" not in repr(kafka)
    tuned = configured("a:1", {"kafka.fetch.max.bytes": "7", "ca_file": "/x"}, {})
    assert isinstance(tuned, JavaKafka) and not tuned.java_login and tuned.options.ca == "/x"
    with pytest.raises(BadInput, match="needs a Spark session"):
        Logs(kafka).topics()


@pytest.mark.parametrize("name", ["kafka.isolation.level", "kafka.bootstrap.servers"])
def test_options_that_the_job_chooses(name: str) -> None:
    with pytest.raises(BadConfig, match=f"{name} cannot be set"):
        configured("a:1", {name: "x"}, {})
    with pytest.raises(BadConfig, match="their names begin with kafka"):
        JavaKafka(options_of("a:1"), {"sasl.mechanism": "GSSAPI"})
