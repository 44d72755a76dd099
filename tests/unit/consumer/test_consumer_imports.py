"""What a consumer of another log than Kafka does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from duemq.client.consumer import Consumer, ConsumerOptions
from duemq.relay.embedded.log import EmbeddedLog
from duemq.relay.rabbitmq.stream import numbering
Consumer("g", options=ConsumerOptions(), log=EmbeddedLog("g", None, None, None))
print(*(name for name in sys.modules if name.startswith(("aiokafka", "duemq.bus.kafka"))))
"""


@pytest.mark.heavy
def test_a_consumer_of_another_log_loads_no_kafka_client() -> None:
    loaded = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
