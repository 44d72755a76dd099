"""What all tests may use."""

pytest_plugins = ["tests.audit_site", "tests.real_servers", "tests.spark_site"]
