"""Real servers on this machine, for tests, benchmarks and first trials: Kafka, ZooKeeper, and duemq on top of them."""
