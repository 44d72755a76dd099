"""What all tests may use."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Brokers and Sparks of tests live for a minute: with the quick compiler alone they need a quarter of the CPU to start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

pytest_plugins = ["tests.real_servers", "tests.spark_site", "tests.audit_site"]

# No example is timed: the machines that run the tests are shared, and a slow one is not a defect.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_ONE_OF_EACH = {"kafka", "kafka_secure", "zookeeper", "redis_url"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that share a real server run in one worker, so that it is started once."""
    for item in items:
        if _ONE_OF_EACH & set(getattr(item, "fixturenames", ())) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("servers"))
