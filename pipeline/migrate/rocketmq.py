"""RocketMQ: messages with a delivery time, of the timer (5.x) and of the 18 delay levels.

Read are lines as `mqadmin exportMessage` writes them of the topics that RocketMQ keeps such messages in. Those are
logs: they also hold what was delivered, taken back, or put off once more, so `rows.reject_repeats` has to look at them
all.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import orjson

from duemq.model.timing import CLASSIC_LEVELS, parse_levels
from duemq.pipeline.migrate.rows import PendingRow, RejectedRow, whole_ms

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
LEVEL_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
# Of RocketMQ itself: what is left of a message's properties are the sender's own.
_SYSTEM: Final = frozenset((
    "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
    "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
    "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "CLUSTER",
    "INSTANCE_ID", "MSG_TYPE", "INNER_NUM", "INNER_BASE", "BORN_TIMESTAMP", "__BORNHOST", "__SHARDINGKEY", "DUP_INFO",
    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "TIMER_ROLL_LABEL",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class RocketOptions:
    """`taken_at_ms`: when the export was made: what was due by then has been delivered. `levels`: the broker's
    `messageDelayLevel`. `precision_ms`: its `timerPrecisionMs`. `topic`: for all; else the message's own."""

    taken_at_ms: int
    topic: str | None = None
    levels: str = CLASSIC_LEVELS
    precision_ms: int = 1000

    def read(self, document: Any) -> PendingRow:
        if not isinstance(document, dict) or not isinstance(properties := document.get("properties"), dict):
            raise RejectedRow("not a message of RocketMQ: it has no properties")
        if "REAL_TOPIC" not in properties:
            raise RejectedRow("it has no REAL_TOPIC: not of the timer's topic, nor of the delay levels'")
        real, unique = str(properties["REAL_TOPIC"]), properties.get("UNIQ_KEY")
        if "TIMER_OUT_MS" in properties:
            due = self._timer(properties)
        else:
            due = self._level(document, properties)
        taken_back = properties.get("TIMER_DEL_UNIQKEY")
        if taken_back is None and due <= self.taken_at_ms:
            raise RejectedRow("it was due before the export was made: RocketMQ has delivered it")
        keys, tags = str(properties.get("KEYS", "")).split(), str(properties.get("TAGS", ""))
        return PendingRow(
            due, self.topic or real, _body(document), keys[0].encode() if keys else None,
            tuple((name, str(value).encode()) for name, value in properties.items() if name not in _SYSTEM),
            (tags,) if tags and "," not in tags and len(tags) <= 128 else (), None, unique,
            twin=f"{real}_{unique}" if unique else None,
            ends=None if taken_back is None else str(taken_back).removeprefix(f"{real}_").join((f"{real}_", "")),
        )  # fmt: skip

    def _timer(self, properties: dict[str, Any]) -> int:
        """The time asked for. TIMER_OUT_MS is the slot before it: of relative times it is all there is."""
        if "TIMER_DELIVER_MS" in properties and not properties.keys() & {"TIMER_DELAY_SEC", "TIMER_DELAY_MS"}:
            return whole_ms(properties["TIMER_DELIVER_MS"], "TIMER_DELIVER_MS")
        return whole_ms(properties["TIMER_OUT_MS"], "TIMER_OUT_MS") + self.precision_ms

    def _level(self, document: dict[str, Any], properties: dict[str, Any]) -> int:
        if "DELAY" not in properties:
            raise RejectedRow("it says no time: no TIMER_OUT_MS, and no DELAY")
        if "storeTimestamp" not in document:
            raise RejectedRow("a delay level counts from storeTimestamp, which this line does not have: see the page")
        delays = parse_levels(self.levels)
        level = min(max(whole_ms(properties["DELAY"], "DELAY"), 1), len(delays))
        return whole_ms(document["storeTimestamp"], "storeTimestamp") + delays[level - 1]


def _body(document: dict[str, Any]) -> bytes:
    body, form = document.get("body"), document.get("bodyFormat", "base64")
    if form == "json":
        return orjson.dumps(body)
    if not isinstance(body, str):
        raise RejectedRow("body is missing")
    if form == "string":
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise RejectedRow(f"body is not base64: {error}") from error
