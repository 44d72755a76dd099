"""What all tests may use."""

pytest_plugins = ["tests.real_servers", "tests.spark_site", "tests.audit_site"]
