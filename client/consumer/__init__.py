"""Consuming topics of Kafka with retries through duemq. See docs/consumers.md."""
