"""Chooses the partition of a key, by the rule that all Kafka clients share."""

from __future__ import annotations

from murmurhash2 import murmurhash2

_KAFKA_SEED = 0x9747B28C  # org.apache.kafka.common.utils.Utils.murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner chooses for a key: murmur2 without its sign bit, modulo the number
    of partitions.

    Nothing is cached: the hash in C takes less than 0.3 µs for a short key, and a cache would hold keys of 64 KiB.
    """
    return (murmurhash2(key, _KAFKA_SEED) & 0x7FFF_FFFF) % partitions
