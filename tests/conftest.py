"""What all tests may use."""

import os

from hypothesis import HealthCheck, settings

# Brokers and Sparks of tests live for a minute: with the quick compiler alone they need a quarter of the CPU to start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

pytest_plugins = ["tests.real_servers", "tests.spark_site", "tests.audit_site"]

# No example is timed: the machines that run the tests are shared, and a slow one is not a defect.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
