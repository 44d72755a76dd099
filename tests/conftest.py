"""What all tests may use."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Brokers and Sparks of tests live for a minute: with the quick compiler alone they need a quarter of the CPU to start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UsePerfData")

# For the processes that tests start. `make` keeps the working directory out of the path, and here it comes last: the
# folder `wheel` must not shadow the distribution.
sys.path.append(str(Path(__file__).parents[1]))

pytest_plugins = [
    "tests.support.servers.real_servers",
    "tests.support.servers.zookeeper_tls",
    "tests.support.rocketmq.fixtures",
    "tests.support.spark.spark_site",
    "tests.support.audit.audit_site",
    "tests.support.servers.s3_site",
    "tests.support.servers.promtool",
    "tests.support.kubernetes.helm",
    "tests.support.destinations.fixtures",
]

# No example is timed: the machines that run the tests are shared, and a slow one is not a defect.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=20)  # of `make quick`
settings.load_profile("untimed")

_SERVERS = ("kafka", "own_kafka", "kafka_secure", "zookeeper", "zookeeper_tls", "redis_url", "spark", "past", "s3")
_DESTINATIONS = (
    "rabbitmq", "own_rabbitmq", "nats_server", "own_nats", "redis_node", "own_redis", "redis_cluster", "rocketmq",
    "rocketmq_closed",
)  # fmt: skip
_PLUGS = ("kafka", "zookeeper", "redis")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real server. All that need the same run in one worker, so that it is started once.

    Those of a contract get theirs by the name of the plug, which is in their own name; `make test` runs all of them.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        asked, destined = bool(fixtures.intersection(_SERVERS)), bool(fixtures.intersection(_DESTINATIONS))
        plugged = "tests/contract/" in item.nodeid and any(plug in item.name for plug in _PLUGS)
        if plugged:
            item.add_marker(pytest.mark.smoke)
        if asked or plugged or destined:
            item.add_marker(pytest.mark.servers)
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("servers" if asked or plugged else "destinations"))
        if item.path.parent.name == "audit" and item.get_closest_marker("xdist_group") is not None:
            item.add_marker(pytest.mark.xdist_group("audit"))  # half of the work of Spark's tests, in a second Spark


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take off what xdist adds to the name of a test in a group: `--last-failed` would not find the test again.

    A worker sends the name as it is: xdist counts its tests by it.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    end = report.nodeid.find("@", report.nodeid.rfind("]") + 1)
    if end >= 0:
        report.nodeid = report.nodeid[:end]
