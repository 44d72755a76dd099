"""Real servers on this machine, for tests, benchmarks and a first look: Kafka, ZooKeeper, and duemq on top of them."""
